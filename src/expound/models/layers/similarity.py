"""The cosine of two vectors as a norm and a product, whose derivatives can follow rules."""

from __future__ import annotations

from torch import Tensor, nn

TINY = 1e-24


class InnerProduct(nn.Module):
    """The inner product of two vectors; `apply_backward_rules` gives each half of the incoming gradient."""

    def forward(self, both: Tensor) -> Tensor:
        """Return the products [B, 1] of pairs [B, 2, d]."""
        return (both[:, 0] * both[:, 1]).sum(-1, keepdim=True)


class Similarity(nn.Module):
    """The cosine of two vectors; `like` is a tensor of their size, type and device."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        size = like.shape[-1]
        # An RMSNorm with the weight 1/√d divides a vector by its length.
        self.norm = nn.RMSNorm(size, eps=TINY, device=like.device, dtype=like.dtype)
        self.norm.weight.requires_grad_(False)
        nn.init.constant_(self.norm.weight, size**-0.5)
        self.product = InnerProduct()

    def forward(self, both: Tensor) -> Tensor:
        """Return the cosines [B, 1] of pairs [B, 2, d]."""
        similarity: Tensor = self.product(self.norm(both))
        return similarity
