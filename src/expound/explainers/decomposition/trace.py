"""Traces of forward passes for decompositions: one unpadded example at a time, in float32 at least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers.base import select_target
from expound.models import Batch, Capture, ExplainedModel
from expound.models.checks import CHECKS, Probe, get_tolerance, remember, take_example
from expound.models.layers import activations
from expound.models.layers.architecture import get_base_model, get_layers, get_module
from expound.models.layers.layer_parts import LayerParts, Norm, get_layer_parts, to_norm
from expound.models.layers.record import Record
from expound.models.outputs import to_float32
from expound.models.passes.capture import intercept_inputs
from expound.models.passes.find_record import find_record

CAPTURE = Capture(attentions=True, heads=True)


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer at one example of L positions.

    Attributes:
        parts: the layer's weights.
        attention: [H, Q, L], attention probabilities of the last Q positions (usually all L), times the scale of the
            norm of attention's output, if it has one.
        values: [H, L, d_h], the values that attention mixes, with the value bias.
        x: [L, d], the layer's input.
        middle: [L, d], x plus the output of attention, before any norm.
        end: [L, d], the input of the second norm of a post-norm layer, or the output of a pre-norm one.
        scale: [L, 1], the scale of the norm of the feed-forward's output, if there is one.
    """

    parts: LayerParts
    attention: Tensor
    values: Tensor
    x: Tensor
    middle: Tensor
    end: Tensor
    scale: Tensor | None = None

    def answer(self, rows: Tensor) -> Tensor:
        """Return the layer's output at `rows` [R]: [R, d]."""
        end = self.end[rows]
        if self.parts.norm_first:
            return end
        return self.parts.norms[1](end)

    def decompose_middle(
        self, rows: Tensor, through: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return `middle` at `rows`, without the output bias, as weights [L, R, H + 1] times vectors [L, H + 1, d].

        middle_i = Σ_j Σ_h weights[j, i, h] · vectors[j, h] + b_O; the last "head" is the residual, with weight δ_ij and
        vector x_j.

        Args:
            rows: [R] positions i.
            through: a linear map on [..., d], applied to the vectors.
        """
        columns = self.parts.output.weight.T
        x = self.x
        if through is not None:
            columns, x = through(columns), through(x)
        heads = self.values @ columns.unflatten(0, (len(self.values), -1))
        residual = torch.eye(len(x), dtype=x.dtype, device=x.device)[None, rows]
        weights = torch.cat([self.attention[:, rows], residual]).permute(2, 1, 0).contiguous()
        return weights, torch.cat([heads, x[None]]).transpose(0, 1).contiguous()


@dataclass(frozen=True, slots=True)
class Trace:
    """All layers at one example.

    Attributes:
        layers: the layers' states.
        positions: [L], the example's columns in the batch.
        final: the norm after the last layer, if there is one.
        logits: [C].
        record: the paths of the parts.
    """

    layers: tuple[LayerState, ...]
    positions: Tensor
    final: Norm | None
    logits: Tensor
    record: Record

    def spread(self, scores: Tensor, length: int) -> Tensor:
        """Return scores [..., L] in the batch's columns [..., length], zero at padding."""
        return scores.new_zeros(*scores.shape[:-1], length).index_copy(-1, self.positions, scores)


@dataclass(frozen=True, slots=True)
class Traces:
    """The logits [B, C] of a batch; iterating gives the traces of its examples, made one at a time."""

    logits: Tensor
    make_trace: Callable[[int], Trace]

    def __iter__(self) -> Iterator[Trace]:
        return map(self.make_trace, range(len(self.logits)))


def get_record(model: ExplainedModel, batch: Batch) -> Record:
    """Return the record of the model's layers as one pass shows them, proven once per loaded model by their parts.

    Raises:
        ExpoundError: a layer that is not understood, or that its parts do not compute.
    """
    record = find_record(model, batch)

    def prove() -> bool:
        alone = take_example(model, batch)
        ends: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            last = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
            if isinstance(last, Tensor) and last.ndim == 3:
                ends.append(to_float32(last))

        try:
            with get_base_model(model.model).register_forward_hook(keep):
                traces = trace_examples(model, alone, record=record)
            for row, trace in enumerate(traces):
                check_parts(trace, get_tolerance(model), *(end[row, trace.positions] for end in ends[:1]))
        except (AttributeError, LookupError, RuntimeError, ValueError) as error:
            raise ExpoundError(f"the layers of {type(model.model).__name__} are not understood: {error}") from error
        return True

    remember(model, "proof of the layer record", prove)
    return record


def check_decomposition(model: ExplainedModel, probe: Probe) -> str:
    """Check that the parts of every layer compute what the layer computes; an ExpoundError says why not."""
    get_record(model, probe.batch)
    return ""


# The checks of models lie below the explainers, and this one needs the traces of decompositions.
CHECKS["decomposition"] = check_decomposition


def check_parts(trace: Trace, tolerance: float, last: Tensor | None = None) -> None:
    """Raise ExpoundError if the parts of a layer do not compute what the next one, or the model's head, gets.

    `last` [L, d]: the last hidden states, after the final norm.
    """
    following = [state.x for state in trace.layers[1:]]
    for number, (state, after) in enumerate(zip(trace.layers, [*following, last], strict=True)):
        middle, answer = compute_by_parts(state)
        own = state.answer(torch.arange(len(state.x), device=state.x.device))
        pairs = [(middle, state.middle), (answer, own)]
        if after is not None:
            final = trace.final if after is last else None
            pairs.append((answer if final is None else final(answer), after))
        # A value's bias reaches every position whole only if rows of attention sum to 1.
        if state.parts.value.bias is not None:
            shares = state.attention.sum(-1)
            pairs.append((shares, torch.ones_like(shares)))
        for found, expected in pairs:
            if not bool((found - expected).abs().max() <= tolerance * expected.abs().max()):
                raise ExpoundError(f"layer {number} is not what its attention, norms and feed-forward compute")


def compute_by_parts(state: LayerState) -> tuple[Tensor, Tensor]:
    """Return the hidden states after the attention's residual connection, and after the layer."""
    parts = state.parts
    before = state.x
    if parts.norm_first:
        before = parts.norms[0](before)
    values = parts.value(before).unflatten(-1, (len(state.values), -1)).transpose(0, 1)
    middle = parts.output((state.attention @ values).transpose(0, 1).flatten(1)) + state.x
    between = parts.norms[1 if parts.norm_first else 0](middle)
    wide = parts.into(between)
    slope = activations.zero_origin_slope(parts.activation)
    if parts.gate is None:
        active = slope(wide) * wide
    else:
        height = parts.gate(between)
        active = slope(height) * height * wide
    out = parts.out(active)
    if state.scale is not None:
        out = out * state.scale
    if parts.norm_first:
        return middle, out + middle
    return middle, parts.norms[1](out + between)


def trace_examples(model: ExplainedModel, batch: Batch, first_query: int = 0, record: Record | None = None) -> Traces:
    """Run one forward pass over the batch and return the traces of its examples.

    Args:
        model: the explained model.
        batch: B examples.
        first_query: the first column of the batch whose attention to others the traces contain.
        record: the record of the layers; default: see `get_record`.
    """
    record = record or get_record(model, batch)
    blocks = get_layers(model.model)
    second_norm = record.norms[1] or record.feed_forward.into
    inputs: list[list[Tensor]] = []
    with ExitStack() as scope:
        x = scope.enter_context(intercept_inputs(blocks))
        for path in (record.norms[0] or second_norm, second_norm, *record.norms_of_outputs):
            inputs.append(scope.enter_context(intercept_inputs([get_module(block, path) for block in blocks])))
        final = []
        if record.final_norm:
            final = [get_module(model.model, record.final_norm)]
        last = scope.enter_context(intercept_inputs(final))
        outputs = model(batch, capture=replace(CAPTURE, first_query=first_query))
    # OPT joins batch and positions to one axis before its feed-forward.
    for seen in inputs:
        seen[:] = [value.reshape(states.shape) for value, states in zip(seen, x, strict=True)]
    first, second, *outputs_of_parts = inputs
    # A pre-norm layer ends where the next one, or the final norm, begins.
    middle, end = (second, [*x[1:], *last]) if record.norm_first else (first, second)
    parts = [get_layer_parts(block, record) for block in blocks]

    def trace(row: int) -> Trace:
        positions = batch.attended[row].nonzero().flatten()
        index = index_positions(positions)
        queries = index_positions(positions[positions >= first_query] - first_query)
        states = []
        for n in range(len(blocks)):
            # In half precision the many small terms of a decomposition would not sum to the hidden state.
            attention = to_float32(outputs.attentions[n][row][:, queries][:, :, index])
            scales = []
            for norm, before in zip(parts[n].norms_of_outputs, outputs_of_parts, strict=True):
                scales.append(norm.scale(before[n][row, index]))
            if scales:
                attention = attention * scales[0][-attention.shape[1] :]
            state = LayerState(
                parts=parts[n],
                attention=attention,
                values=to_float32(outputs.values[n][row][:, index]),
                x=to_float32(x[n][row, index]),
                middle=to_float32(middle[n][row, index]),
                end=to_float32(end[n][row, index]),
                scale=scales[1] if scales else None,
            )
            states.append(state)
        after = to_norm(final[0]) if final else None
        return Trace(tuple(states), positions, after, to_float32(outputs.logits[row]), record)

    return Traces(outputs.logits, trace)


def stack_readout_rows(
    model: ExplainedModel,
    batch: Batch,
    traces: Traces,
    target: Tensor | None,
    rows: Callable[[Trace, Tensor], Tensor],
) -> Tensor:
    """Return [B, N, L]: for each trace, `rows` [N, l] of its readout weights [l], in the batch's columns."""
    readout = model.readout_weights(batch, select_target(model, batch, target, traces.logits))
    spread = []
    for trace, weights in zip(traces, readout, strict=True):
        spread.append(trace.spread(rows(trace, weights[trace.positions]), batch.length))
    return torch.stack(spread)


def index_positions(positions: Tensor) -> slice | Tensor:
    """Return an index for these positions: a slice, which copies no data, if they are consecutive."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if stop - start == len(positions):
        return slice(start, stop)
    return positions
