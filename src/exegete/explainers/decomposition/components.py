"""Every hidden state as a sum of what each input position gave to it, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exegete.explainers.decomposition import biases
from exegete.explainers.decomposition.feed_forward import Activation, count_rows_per_chunk, propagate_feed_forward
from exegete.explainers.decomposition.trace import LayerState, Trace
from exegete.models.layers.layer_parts import Norm


@dataclass(frozen=True, slots=True)
class DecompositionRules:
    """How the parts that are not linear are shared among components; `max_memory`: bytes of a chunk."""

    bias: str = "absdot"
    activation: Activation = "zero_origin"
    feed_forward: bool = True
    max_memory: int = 1 << 25


@torch.no_grad()
def decompose_layers(trace: Trace, rules: DecompositionRules, needed: Tensor) -> Iterator[Tensor]:
    """X [R, K, d] behind every layer: X[i, k] is what position k gave to position i, Σ_k X[i, k] the hidden state.

    R is all positions, behind the last layer only those `needed`; K is L (with the bias rule `token` L + 1, the last
    one being the biases). All layers use one tensor: what is yielded is overwritten when the next one is asked for.
    """
    everywhere = torch.arange(len(trace.positions), device=trace.positions.device)
    current: Tensor | None = None
    for number, state in enumerate(trace.layers, 1):
        rows = needed if number == len(trace.layers) else everywhere
        mixed = _mix_first_layer(state, rules, rows) if current is None else _mix_layer(state, rules, current, rows)
        bias = _get_attention_bias(state, first=current is None)
        size = count_rows_per_chunk(state.parts, mixed.shape[1], rules.max_memory)
        for part, index in zip(mixed.split(size), rows.split(size), strict=True):
            part.copy_(_apply_rest_of_layer(state, rules, biases.add_bias(rules.bias, part, bias), index))
        current = mixed
        yield current


def apply_norm(norm: Norm, parts: Tensor, before: Tensor, bias: str) -> Tensor:
    """Components [R, K, d] of `before` [R, d] through a norm held at its scale."""
    if not norm.active:
        return parts.clone()
    return biases.add_bias(bias, norm.linear(parts, norm.scale(before)[:, None]), norm.bias)


def _get_attention_bias(state: LayerState, *, first: bool) -> Tensor | None:
    """The output bias, and behind the first layer, whose values hold theirs, the value bias (attention sums to 1)."""
    value, output = state.parts.value, state.parts.output
    if first or value.bias is None:
        return output.bias
    through = output.weight @ value.bias
    return through if output.bias is None else through + output.bias


def _mix_first_layer(state: LayerState, rules: DecompositionRules, rows: Tensor) -> Tensor:
    """Attention and residual of the first layer, where each position is its own only component."""
    weights, vectors = state.decompose_middle(rows)
    length, size = state.x.shape
    mixed = state.x.new_zeros(len(rows), length + (rules.bias == "token"), size)
    step = max(1, rules.max_memory // (len(rows) * size * mixed.element_size()))
    for start in range(0, length, step):
        mixed[:, start : min(start + step, length)] = (
            weights[start : start + step] @ vectors[start : start + step]
        ).transpose(0, 1)
    return mixed


def _mix_layer(state: LayerState, rules: DecompositionRules, current: Tensor, rows: Tensor) -> Tensor:
    """Attention and residual; in place, components in chunks, when all rows are wanted."""
    heads = len(state.attention)
    attention = state.attention[:, rows]
    whole = len(rows) == len(current)
    mixed = current if whole else current[rows]
    shares = _share_norm_bias(state, rules, current) if state.parts.norm_first else None
    step = max(1, rules.max_memory // (current[:, 0].numel() * 4 * current.element_size()))
    for start in range(0, current.shape[1], step):
        chunk = slice(start, start + step)
        values = _make_attention_inputs(state, current[:, chunk], None if shares is None else shares[:, chunk])
        values = (values @ state.parts.value.weight.T).unflatten(-1, (heads, -1))
        joined = attention @ values.permute(2, 0, 1, 3).flatten(2)
        joined = joined.unflatten(-1, (values.shape[1], -1)).permute(1, 2, 0, 3).flatten(2)
        mixed[:, chunk] += joined @ state.parts.output.weight.T
    return mixed


def _share_norm_bias(state: LayerState, rules: DecompositionRules, current: Tensor) -> Tensor | None:
    """Each component's share [L, K] of the bias of the norm before attention."""
    norm = state.parts.norms[0]
    if norm.bias is None:
        return None
    scale = norm.scale(state.x)[:, None]
    step = max(1, rules.max_memory // (current[0].numel() * current.element_size()))
    chunks = zip(current.split(step), scale.split(step), strict=True)
    return torch.cat([biases.compute_bias_shares(rules.bias, norm.linear(part, s), norm.bias) for part, s in chunks])


def _make_attention_inputs(state: LayerState, part: Tensor, shares: Tensor | None) -> Tensor:
    """The inputs [L, c, d] of the value projection: the components, in pre-norm families through the norm."""
    norm = state.parts.norms[0]
    if not state.parts.norm_first:
        return part
    part = norm.linear(part, norm.scale(state.x)[:, None])
    return part if shares is None or norm.bias is None else part + shares[..., None] * norm.bias


def _apply_rest_of_layer(state: LayerState, rules: DecompositionRules, mixed: Tensor, rows: Tensor) -> Tensor:
    """Norms and feed-forward of some rows: [c, K, d]."""
    parts, middle = state.parts, state.middle[rows]
    norm = parts.norms[1 if parts.norm_first else 0]
    between = apply_norm(norm, mixed, middle, rules.bias)
    added = mixed if parts.norm_first else between
    if rules.feed_forward:
        point = norm(middle)
        added = propagate_feed_forward(parts, between, point, rules.bias, rules.activation).add_(added)
    return added if parts.norm_first else apply_norm(parts.norms[1], added, state.end[rows], rules.bias)
