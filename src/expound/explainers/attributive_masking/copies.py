"""Copies of a network side by side: example i of a batch runs through copy i, all copies in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError


def make_copies(
    network: nn.Module,
    count: int,
    rank: int = 0,
    shared: tuple[Any, ...] = (),
    instead: Mapping[nn.Module, nn.Module] | None = None,
) -> nn.Module:
    """Return a network of the same structure whose trainable layers hold `count` copies of their weights.

    Trained on the sum of the examples' losses, each copy changes as it would alone. Weights that require no gradient
    are shared with the network; `copy_weights` returns the copied ones.

    Args:
        network: the network to copy; it is not changed.
        count: B, the number of examples of the batches that the result takes.
        rank: 0 for full copies. Otherwise a copy is the fixed network plus a matrix of at most this rank and a bias for
            each linear layer.
        shared: further objects inside the network that are not copied.
        instead: modules of the network to replace, with their replacements.

    Raises:
        ExpoundError: a layer with trainable weights that is neither linear nor a layer norm.
    """
    # deepcopy takes objects that its memo knows as they are: weights are not copied once more before they are stacked.
    memo: dict[int, Any] = {id(item): item for item in (*network.parameters(), *network.buffers(), *shared)}
    memo |= {id(module): replacement for module, replacement in (instead or {}).items()}
    copies = deepcopy(network, memo)
    for name, layer in list(copies.named_modules()):
        if any(weight.requires_grad for weight in layer.parameters(recurse=False)):
            copied = _copy_layer(layer, count, rank)
            if copied is not layer:
                copies.set_submodule(name, copied)
    return copies


def copy_weights(copies: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the copied weights [B, ...] of a network that `make_copies` returned."""
    for layer in copies.modules():
        if isinstance(layer, _CopiedLayer):
            yield from layer.parameters(recurse=False)


def _copy_layer(layer: nn.Module, count: int, rank: int) -> nn.Module:
    if isinstance(layer, nn.Linear):
        if rank:
            return BatchedLowRankLinear(layer, count, rank)
        return BatchedLinear(layer, count)
    if isinstance(layer, nn.LayerNorm):
        return layer if rank else BatchedLayerNorm(layer, count)
    raise ExpoundError(
        f"{type(layer).__name__} has weights that cannot be refined side by side: freeze it, or use another backbone"
    )


class _CopiedLayer(nn.Module):
    """Base of a layer in B copies."""

    @staticmethod
    def stack_weight(weight: Tensor | None, count: int) -> nn.Parameter | None:
        """Return B copies of a weight, [B, ...], or None without a weight."""
        if weight is None:
            return None
        return nn.Parameter(weight.detach().expand(count, *weight.shape).clone())


class BatchedLinear(_CopiedLayer):
    """A linear layer for each example: x_i W_i^T + b_i."""

    def __init__(self, layer: nn.Linear, count: int) -> None:
        super().__init__()
        weight = self.stack_weight(layer.weight, count)
        assert weight is not None
        self.weight, self.bias = weight, self.stack_weight(layer.bias, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs [B, ..., out] for inputs [B, ..., in]."""
        rows = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs[:, None]
        transposed = self.weight.transpose(1, 2)
        outputs = rows @ transposed if self.bias is None else torch.baddbmm(self.bias[:, None], rows, transposed)
        return outputs.view(*inputs.shape[:-1], -1)


class BatchedLowRankLinear(_CopiedLayer):
    """A low-rank change of a fixed linear layer for each example: x_i (W + U_i V_i)^T + b_i."""

    def __init__(self, layer: nn.Linear, count: int, rank: int) -> None:
        super().__init__()
        # As in LoRA, one factor is random and the other zero: copies start as the layer itself.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(layer.in_features, rank, generator=generator).to(layer.weight) / layer.in_features**0.5
        self.register_buffer("whole", layer.weight.detach(), persistent=False)
        self.down = nn.Parameter(drawn.expand(count, -1, -1).clone())
        self.up = nn.Parameter(layer.weight.new_zeros(count, rank, layer.out_features))
        self.bias = self.stack_weight(layer.bias, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs [B, ..., out] for inputs [B, ..., in]."""
        rows = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs[:, None]
        whole: Any = self.whole
        outputs: Tensor = rows @ whole.T + (rows @ self.down) @ self.up
        if self.bias is not None:
            outputs = outputs + self.bias[:, None]
        return outputs.view(*inputs.shape[:-1], -1)


class BatchedLayerNorm(_CopiedLayer):
    """A layer norm with gains and offsets for each example."""

    def __init__(self, layer: nn.LayerNorm, count: int) -> None:
        super().__init__()
        self.shape, self.eps = layer.normalized_shape, layer.eps
        self.weight, self.bias = self.stack_weight(layer.weight, count), self.stack_weight(layer.bias, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalized inputs [B, ..., d]."""
        between = [1] * (inputs.ndim - 1 - len(self.shape))
        normal = nn.functional.layer_norm(inputs, self.shape, eps=self.eps)
        if self.weight is not None:
            normal = normal * self.weight.view(len(inputs), *between, *self.shape)
        if self.bias is None:
            return normal
        return normal + self.bias.view(len(inputs), *between, *self.shape)
