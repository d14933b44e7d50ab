"""The cosine of two vectors, from parts whose derivatives can follow rules: a norm and a product."""

from __future__ import annotations

from torch import Tensor, nn

TINY = 1e-24


class InnerProduct(nn.Module):
    """The inner product of two vectors; under `frozen` either gets half of what comes back."""

    def forward(self, both: Tensor) -> Tensor:
        """[B, 1] of [B, 2, d]."""
        return (both[:, 0] * both[:, 1]).sum(-1, keepdim=True)


class Similarity(nn.Module):
    """The cosine of two vectors; `like` one that has their size, type and device."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        size = like.shape[-1]
        self.norm = nn.RMSNorm(size, eps=TINY, device=like.device, dtype=like.dtype)
        self.norm.weight.requires_grad_(False)
        nn.init.constant_(self.norm.weight, size**-0.5)
        self.product = InnerProduct()

    def forward(self, both: Tensor) -> Tensor:
        """[B, 1] of [B, 2, d]."""
        similarity: Tensor = self.product(self.norm(both))
        return similarity
