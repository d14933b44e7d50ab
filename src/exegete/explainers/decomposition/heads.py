"""Propagation of components through a head that is held at its activation slope."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from exegete.errors import check_choice
from exegete.explainers.decomposition import biases
from exegete.models.layers import activations
from exegete.models.layers.layer_parts import HeadParts


def propagate_head(
    parts: HeadParts, components: Tensor, point: Tensor, bias: str, activation: Literal["zero_origin", "tangent"]
) -> Tensor:
    """Propagate components [Q, K, d] of the inputs `point` [Q, d] through the head: [Q, K, C]."""
    check_choice("head activation rule", activation, ("zero_origin", "tangent"))
    if parts.dense is not None:
        components = biases.add_bias(bias, components @ parts.dense.weight.T, parts.dense.bias)
        height = parts.dense(point)
        steepness = activations.get_slope(parts.activation)(height)
        point = steepness * height
        if activation == "tangent":
            steepness, rest = activations.compute_tangent(parts.activation, height)
            components = biases.add_bias(bias, components * steepness[:, None], rest)
        else:
            components = components * steepness[:, None]
    if parts.norm is not None:
        scale = parts.norm.scale(point)
        components = biases.add_bias(bias, parts.norm.linear(components, scale[:, None]), parts.norm.bias)
    return biases.add_bias(bias, components @ parts.output.weight.T, parts.output.bias)
