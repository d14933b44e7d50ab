"""Copies of a network side by side: example i of a batch goes through copy i, all copies in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError


def make_copies(
    network: nn.Module,
    count: int,
    rank: int = 0,
    shared: tuple[Any, ...] = (),
    instead: Mapping[nn.Module, nn.Module] | None = None,
) -> nn.Module:
    """A network of the same form whose trainable layers hold `count` copies of their weights, one for each example.

    Trained on a sum of the examples' losses, every copy goes where it would go alone. Weights that require no gradient
    stay the network's own; `copy_weights` are those that were copied.

    Args:
        network: what is copied; it stays as it is.
        count: B, the examples of the batches that the result takes.
        rank: 0: whole copies. Else a copy is the network itself, which stays, plus a matrix of at most this rank and a
            bias for each linear layer.
        shared: further objects inside the network that need no copy.
        instead: modules of the network that are left out, with what takes their places.

    Raises:
        ExegeteError: a layer with trainable weights that is neither linear nor a layer norm.
    """
    same: dict[int, Any] = {id(each): each for each in (*network.parameters(), *network.buffers(), *shared)}
    copies = deepcopy(network, same | {id(left): other for left, other in (instead or {}).items()})
    for name, layer in list(copies.named_modules()):
        if any(weight.requires_grad for weight in layer.parameters(recurse=False)):
            copied = _copy_layer(layer, count, rank)
            if copied is not layer:
                copies.set_submodule(name, copied)
    return copies


def copy_weights(copies: nn.Module) -> Iterator[nn.Parameter]:
    """The weights [B, ...] of all copies in a network that `make_copies` made."""
    for layer in copies.modules():
        if isinstance(layer, _CopiedLayer):
            yield from layer.parameters(recurse=False)


def _copy_layer(layer: nn.Module, count: int, rank: int) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return BatchedLowRankLinear(layer, count, rank) if rank else BatchedLinear(layer, count)
    if isinstance(layer, nn.LayerNorm):
        return layer if rank else BatchedLayerNorm(layer, count)
    raise ExegeteError(
        f"{type(layer).__name__} has weights that cannot be refined side by side: freeze it, or use another backbone"
    )


class _CopiedLayer(nn.Module):
    """A layer in B copies."""

    @staticmethod
    def stack_weight(weight: Tensor | None, count: int) -> nn.Parameter | None:
        """[B, ...] Copies of a weight."""
        if weight is None:
            return None
        return nn.Parameter(weight.detach().expand(count, *weight.shape).clone())


class BatchedLinear(_CopiedLayer):
    """Linear layers side by side, one for each example: x_i W_i^T + b_i."""

    def __init__(self, layer: nn.Linear, count: int) -> None:
        super().__init__()
        weight = self.stack_weight(layer.weight, count)
        assert weight is not None
        self.weight, self.bias = weight, self.stack_weight(layer.bias, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, ..., out] from [B, ..., in]."""
        rows = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs[:, None]
        transposed = self.weight.transpose(1, 2)
        found = rows @ transposed if self.bias is None else torch.baddbmm(self.bias[:, None], rows, transposed)
        return found.view(*inputs.shape[:-1], -1)


class BatchedLowRankLinear(_CopiedLayer):
    """x_i (W + U_i V_i)^T + b_i with W as it was; the product is 0 at first."""

    def __init__(self, layer: nn.Linear, count: int, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(layer.in_features, rank, generator=generator).to(layer.weight) / layer.in_features**0.5
        self.register_buffer("whole", layer.weight.detach(), persistent=False)
        self.down = nn.Parameter(drawn.expand(count, -1, -1).clone())
        self.up = nn.Parameter(layer.weight.new_zeros(count, rank, layer.out_features))
        self.bias = self.stack_weight(layer.bias, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, ..., out] from [B, ..., in]."""
        rows = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs[:, None]
        whole: Any = self.whole
        found: Tensor = rows @ whole.T + (rows @ self.down) @ self.up
        found = found if self.bias is None else found + self.bias[:, None]
        return found.view(*inputs.shape[:-1], -1)


class BatchedLayerNorm(_CopiedLayer):
    """Layer norm with gains and offsets of each example's own."""

    def __init__(self, layer: nn.LayerNorm, count: int) -> None:
        super().__init__()
        self.shape, self.eps = layer.normalized_shape, layer.eps
        self.weight, self.bias = self.stack_weight(layer.weight, count), self.stack_weight(layer.bias, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """The shape of the inputs, [B, ..., d]."""
        between = [1] * (inputs.ndim - 1 - len(self.shape))
        normal = nn.functional.layer_norm(inputs, self.shape, eps=self.eps)
        if self.weight is not None:
            normal = normal * self.weight.view(len(inputs), *between, *self.shape)
        return normal if self.bias is None else normal + self.bias.view(len(inputs), *between, *self.shape)
