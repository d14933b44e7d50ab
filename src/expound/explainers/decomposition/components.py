"""Every hidden state as a sum of contributions of the input positions, among which biases are shared (DecompX)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.decomposition.trace import LayerState, Trace
from expound.models.layers import activations
from expound.models.layers.layer_parts import LayerParts, Norm

# A rule gets the inner products ⟨x_k, b⟩ and the lengths ‖x_k‖ of the components, and returns shares w_k that sum to 1
# (DecompX, Modarressi et al. 2023, whose default is absdot).
Bias = Literal["absdot", "dot", "norm", "abssim", "equal", "first", "token", "none"]
Rule = Callable[[Tensor, Tensor], Tensor]
TINY = 1e-12
"""The authors' guard against a division by zero."""


def _share_first(inner: Tensor, lengths: Tensor) -> Tensor:
    return torch.zeros_like(inner).index_fill(-1, torch.tensor(0, device=inner.device), 1.0)


def _share_by_absolute_dot(inner: Tensor, lengths: Tensor) -> Tensor:
    return inner.abs() / (inner.abs().sum(-1, keepdim=True) + TINY)


BIAS_RULES: Mapping[str, Rule] = {
    "absdot": _share_by_absolute_dot,
    "dot": lambda inner, lengths: inner / (inner.sum(-1, keepdim=True) + TINY),
    "norm": lambda inner, lengths: lengths / (lengths.sum(-1, keepdim=True) + TINY),
    "abssim": lambda inner, lengths: _share_by_absolute_dot(inner / lengths.clamp(min=TINY), lengths),
    "equal": lambda inner, lengths: torch.full_like(inner, 1 / inner.shape[-1]),
    "first": _share_first,
    "token": lambda inner, lengths: _share_first(inner, lengths).flip(-1),
    "none": lambda inner, lengths: torch.zeros_like(inner),
}
NEED_LENGTHS = frozenset({"norm", "abssim"})


def compute_bias_shares(rule: str, components: Tensor, bias: Tensor) -> Tensor:
    """Return each component's share [..., K] of a bias [..., d], for components [..., K, d]."""
    inner = (components @ bias.unsqueeze(-1)).squeeze(-1)
    # Lengths cost another pass over the components, so they are computed for the rules that use them only.
    lengths = components.square().sum(-1).sqrt() if rule in NEED_LENGTHS else inner
    return BIAS_RULES[rule](inner, lengths)


def add_bias(rule: str, components: Tensor, bias: Tensor | None) -> Tensor:
    """Add the bias [..., d] to the components [..., K, d] in place, shared among them by the rule."""
    if bias is None:
        return components
    return components.addcmul_(compute_bias_shares(rule, components, bias)[..., None], bias[..., None, :])


Activation = Literal["zero_origin", "tangent", "relu"]


@dataclass(frozen=True, slots=True)
class DecompositionRules:
    """Rules that share nonlinear parts among components; `max_memory`: bytes per chunk."""

    bias: str = "absdot"
    activation: Activation = "zero_origin"
    feed_forward: bool = True
    max_memory: int = 1 << 25


@torch.no_grad()
def decompose_layers(trace: Trace, rules: DecompositionRules, needed: Tensor) -> Iterator[Tensor]:
    """Yield X [R, K, d] after every layer: X[i, k] is the contribution of position k to the hidden state Σ_k X[i, k].

    R is all positions, after the last layer only those `needed`; K is L (with the bias rule `token` L + 1, and the last
    one is the biases). All layers share one tensor: the yielded one is overwritten by the next layer.
    """
    everywhere = torch.arange(len(trace.positions), device=trace.positions.device)
    current: Tensor | None = None
    for number, state in enumerate(trace.layers):
        rows = needed if number + 1 == len(trace.layers) else everywhere
        if isinstance(state.parts, LayerParts):
            current = _decompose_layer(state, state.parts, rules, current, rows)
        else:
            current = _run_on_components(trace, number, rules, current)[rows]
        yield current


def _decompose_layer(
    state: LayerState, parts: LayerParts, rules: DecompositionRules, current: Tensor | None, rows: Tensor
) -> Tensor:
    """Return the components [R, K, d] after a layer whose weights are known; None: before the first layer."""
    # The components that a parallel feed-forward reads are kept, since attention writes into them.
    before = None
    if parts.is_parallel and rules.feed_forward:
        before = _make_first_components(state, rules)[rows] if current is None else current[rows]
    bias = _get_attention_bias(parts, first=current is None)
    mixed = _mix_first_layer(state, rules, rows) if current is None else _mix_layer(state, parts, rules, current, rows)
    size = count_rows_per_chunk(parts, mixed.shape[1], rules.max_memory)
    for start in range(0, len(rows), size):
        chunk = slice(start, start + size)
        part = add_bias(rules.bias, mixed[chunk], bias)
        read = part if before is None else before[chunk]
        part.copy_(_apply_rest_of_layer(state, parts, rules, part, read, rows[chunk]))
    return mixed


def _make_first_components(state: LayerState, rules: DecompositionRules) -> Tensor:
    """Return the components [L, K, d] before the first layer, where each position is its own only component."""
    length, size = state.x.shape
    own = state.x.new_zeros(length, length + (rules.bias == "token"), size)
    own[range(length), range(length)] = state.x
    return own


def _run_on_components(trace: Trace, number: int, rules: DecompositionRules, current: Tensor | None) -> Tensor:
    """Return the components [L, K, d] after a layer whose weights are not all known, as its own derivatives by rules.

    All that the layer adds to them is shared at its end.
    """
    if rules.activation != "zero_origin" or not rules.feed_forward:
        raise ExpoundError(
            f"the weights of layer {number} are not all understood: decompx explains it with activation=zero_origin "
            "and feed_forward=True only"
        )
    state = trace.layers[number]
    if current is None:
        current = _make_first_components(state, rules)
    run, output = trace.linearize(number)
    step = max(1, rules.max_memory // (4 * current[:, 0].numel() * current.element_size()))
    mapped = torch.cat([run(chunk) for chunk in current.split(step, 1)], 1)
    return add_bias(rules.bias, mapped, output - run(state.x[:, None])[:, 0])


def apply_norm(norm: Norm, parts: Tensor, before: Tensor, bias: str) -> Tensor:
    """Return the components [R, K, d] of `before` [R, d] after a norm that is held at its scale."""
    if not norm.active:
        # Callers write into the result, which must not be their input.
        return parts.clone()
    return add_bias(bias, norm.linear(parts, norm.scale(before)[:, None]), norm.bias)


def _get_attention_bias(parts: LayerParts, *, first: bool) -> Tensor | None:
    """Return the bias of the attention block [d], or None."""
    # Rows of attention sum to 1, so the value bias reaches every position whole. In the first layer it is part of the
    # values; in later ones, components are mixed without it.
    value, output = parts.value, parts.output
    if first or value.bias is None:
        return output.bias
    through = output.weight @ value.bias
    if output.bias is None:
        return through
    return through + output.bias


def _mix_first_layer(state: LayerState, rules: DecompositionRules, rows: Tensor) -> Tensor:
    """Return attention plus residual of the first layer, where each position is its own only component: [R, K, d]."""
    weights, vectors = state.decompose_middle(rows)
    length, size = state.x.shape
    mixed = state.x.new_zeros(len(rows), length + (rules.bias == "token"), size)
    step = max(1, rules.max_memory // (len(rows) * size * mixed.element_size()))
    for start in range(0, length, step):
        mixed[:, start : min(start + step, length)] = (
            weights[start : start + step] @ vectors[start : start + step]
        ).transpose(0, 1)
    return mixed


def _mix_layer(
    state: LayerState, parts: LayerParts, rules: DecompositionRules, current: Tensor, rows: Tensor
) -> Tensor:
    """Return attention plus residual [R, K, d], written into `current` if R is all positions."""
    heads = len(state.attention)
    attention = state.attention[:, rows]
    whole = len(rows) == len(current)
    mixed = current if whole else current[rows]
    shares = _share_norm_bias(state, rules, current) if parts.norm_first else None
    # Attention mixes positions, so all of them are needed at once and the chunks are of components.
    step = max(1, rules.max_memory // (current[:, 0].numel() * 4 * current.element_size()))
    for start in range(0, current.shape[1], step):
        chunk = slice(start, start + step)
        values = _make_attention_inputs(state, current[:, chunk], None if shares is None else shares[:, chunk])
        values = (values @ parts.value.weight.T).unflatten(-1, (heads, -1))
        if state.latent_scale is not None:
            values.mul_(state.latent_scale[..., None, None])
        joined = attention @ values.permute(2, 0, 1, 3).flatten(2)
        joined = joined.unflatten(-1, (values.shape[1], -1)).permute(1, 2, 0, 3).flatten(2)
        mixed[:, chunk] += joined @ parts.output.weight.T
    return mixed


def _share_norm_bias(state: LayerState, rules: DecompositionRules, current: Tensor) -> Tensor | None:
    """Return each component's share [L, K] of the bias of the norm before attention."""
    norm = state.parts.norms[0]
    if norm.bias is None:
        return None
    scale = norm.scale(state.x)[:, None]
    step = max(1, rules.max_memory // (current[0].numel() * current.element_size()))
    chunks = zip(current.split(step), scale.split(step), strict=True)
    return torch.cat([compute_bias_shares(rules.bias, norm.linear(part, s), norm.bias) for part, s in chunks])


def _make_attention_inputs(state: LayerState, part: Tensor, shares: Tensor | None) -> Tensor:
    """Return the inputs [L, c, d] of the value projection: the components, after the norm in pre-norm families."""
    norm = state.parts.norms[0]
    if not state.parts.norm_first:
        return part
    part = norm.linear(part, norm.scale(state.x)[:, None])
    if shares is None or norm.bias is None:
        return part
    return part + shares[..., None] * norm.bias


def _apply_rest_of_layer(
    state: LayerState, parts: LayerParts, rules: DecompositionRules, mixed: Tensor, read: Tensor, rows: Tensor
) -> Tensor:
    """Return the components [c, K, d] of c rows after a layer.

    `mixed` are the components after its attention, and `read` those that its feed-forward reads.
    """
    before = state.x[rows] if parts.is_parallel else state.middle[rows]
    norm = parts.norms[int(parts.norm_first)]
    between = apply_norm(norm, read, before, rules.bias)
    # The residual branch starts before the norm in pre-norm layers, after it in post-norm ones.
    added = mixed if parts.norm_first else between
    if rules.feed_forward:
        point = norm(before)
        fed = propagate_feed_forward(parts, between, point, rules.bias, rules.activation)
        if parts.experts is not None and state.routing is not None:
            fed += parts.experts.propagate(between, point, *(part[rows] for part in state.routing))
        if state.scale is not None:
            fed *= state.scale[rows][:, None]
        added = fed.add_(added)
    if parts.norm_first:
        return added
    return apply_norm(parts.norms[1], added, state.end[rows], rules.bias)


def propagate_feed_forward(
    parts: LayerParts, components: Tensor, point: Tensor, bias: str, activation: Activation
) -> Tensor:
    """Propagate components [c, K, d] of the inputs `point` [c, d] through the feed-forward block: [c, K, d]."""
    width, size = parts.into.weight.shape
    count = components.shape[1]
    if bias in NEED_LENGTHS or (activation == "tangent" and parts.gate is None):
        out = _propagate_in_steps(parts, components, point, bias, activation)
        return add_bias(bias, out, parts.out.bias)
    theta, first, second = compute_slopes(parts, point, activation), parts.into, parts.out.weight
    # With frozen slopes the block is one matrix per position. Building it costs less than two projections of every
    # component if the input is long.
    if width * size + count * size < 2 * count * width:
        out = components @ _fold_matrices(first.weight, second, theta).mT
    else:
        out = (components @ first.weight.T).mul_(theta[:, None]) @ second.T
    if first.bias is not None:
        # The inner products ⟨W₁ x_k, b₁⟩, and b₁ behind the block, without another tensor of the block's width.
        inner = components @ (first.bias @ first.weight)
        out.addcmul_(BIAS_RULES[bias](inner, inner)[..., None], ((theta * first.bias) @ second.T)[:, None])
    return add_bias(bias, out, parts.out.bias)


def _fold_matrices(first: Tensor, second: Tensor, theta: Tensor) -> Tensor:
    """Return W₂ diag(θ_i) W₁ of each position: [c, d, d]."""
    matrices: Tensor = ((second * theta[:, None]).flatten(0, 1) @ first).unflatten(0, (len(theta), -1))
    return matrices


def compute_slopes(parts: LayerParts, point: Tensor, activation: Activation) -> Tensor:
    """Return θ [c, d_ff], the factor of the wide layer's values: the activation's slope, or the gate's output."""
    name = parts.activation
    if parts.gate is not None:
        height = parts.gate(point)
        return activations.zero_origin_slope(name)(height) * height
    if activation == "relu":
        name = "relu"
    return activations.zero_origin_slope(name)(parts.into(point))


def _propagate_in_steps(
    parts: LayerParts, components: Tensor, point: Tensor, bias: str, activation: Activation
) -> Tensor:
    wide = add_bias(bias, components @ parts.into.weight.T, parts.into.bias)
    if activation == "tangent" and parts.gate is None:
        slope, height = activations.compute_tangent(parts.activation, parts.into(point))
        wide = add_bias(bias, wide.mul_(slope[:, None]), height)
    else:
        wide.mul_(compute_slopes(parts, point, activation)[:, None])
    return wide @ parts.out.weight.T


def count_rows_per_chunk(parts: LayerParts, count: int, max_memory: int) -> int:
    """Return how many rows of `count` components fit into `max_memory` bytes, in whichever form is larger."""
    wide, size = parts.into.weight.shape
    if parts.experts is not None:
        wide = max(wide, parts.experts.module.down_proj.shape[-1])
    numbers = max(count * (wide + 2 * size), wide * size + size * size)
    return max(1, max_memory // (numbers * parts.into.weight.element_size()))
