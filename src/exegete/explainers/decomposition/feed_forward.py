"""Propagation of components through a feed-forward block that is held at its activation slopes."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from exegete.explainers.decomposition import biases
from exegete.models.layers import activations
from exegete.models.layers.layer_parts import LayerParts

Activation = Literal["zero_origin", "tangent", "relu"]


def propagate_feed_forward(
    parts: LayerParts, components: Tensor, point: Tensor, bias: str, activation: Activation
) -> Tensor:
    """Propagate components [c, K, d] of the inputs `point` [c, d] through the feed-forward block: [c, K, d]."""
    # With frozen slopes the block is one matrix per position, M_i = W₂ diag(θ_i) W₁. Building it costs less than two
    # projections of every component if the input is long.
    width, size = parts.into.weight.shape
    count = components.shape[1]
    linear = activation != "tangent" or parts.gate is not None
    if linear and bias not in biases.NEED_LENGTHS and width * size + count * size < 2 * count * width:
        out = _propagate_folded(parts, components, compute_slopes(parts, point, activation), bias)
    else:
        out = _propagate_in_steps(parts, components, point, bias, activation)
    return biases.add_bias(bias, out, parts.out.bias)


def compute_slopes(parts: LayerParts, point: Tensor, activation: Activation) -> Tensor:
    """Return θ [c, d_ff], the factor of the wide layer's values: the activation's slope, or the gate's output."""
    name = parts.activation
    if parts.gate is not None:
        height = parts.gate(point)
        return activations.get_slope(name)(height) * height
    if activation == "relu":
        name = "relu"
    return activations.get_slope(name)(parts.into(point))


def _propagate_folded(parts: LayerParts, components: Tensor, theta: Tensor, bias: str) -> Tensor:
    first, second = parts.into, parts.out.weight
    matrices = (second * theta[:, None]).flatten(0, 1) @ first.weight
    out: Tensor = components @ matrices.unflatten(0, (len(theta), -1)).mT
    if first.bias is None:
        return out
    inner = components @ (first.bias @ first.weight)
    owned = biases.RULES[bias](inner, inner)
    return out.addcmul_(owned[..., None], ((theta * first.bias) @ second.T)[:, None])


def _propagate_in_steps(
    parts: LayerParts, components: Tensor, point: Tensor, bias: str, activation: Activation
) -> Tensor:
    wide = biases.add_bias(bias, components @ parts.into.weight.T, parts.into.bias)
    if activation == "tangent" and parts.gate is None:
        steepness, height = activations.compute_tangent(parts.activation, parts.into(point))
        wide = biases.add_bias(bias, wide.mul_(steepness[:, None]), height)
    else:
        wide.mul_(compute_slopes(parts, point, activation)[:, None])
    return wide @ parts.out.weight.T


def count_rows_per_chunk(parts: LayerParts, count: int, max_memory: int) -> int:
    """Return how many rows of `count` components fit into `max_memory` bytes, in whichever form is larger."""
    wide, size = parts.into.weight.shape
    numbers = max(count * (wide + 2 * size), wide * size + size * size)
    return max(1, max_memory // (numbers * parts.into.weight.element_size()))
