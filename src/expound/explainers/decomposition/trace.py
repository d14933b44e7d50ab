"""Traces of forward passes for decompositions: one unpadded example at a time, in float32 at least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers.base import select_target
from expound.models import Batch, Capture, ExplainedModel
from expound.models.batch import to_float32
from expound.models.checks import CHECKS
from expound.models.hugging_face import Probe, find_failure, get_tolerance, remember, take_example
from expound.models.layers import activations
from expound.models.layers.architecture import get_base_model, get_layers, get_module
from expound.models.layers.backward_rules import apply_backward_rules
from expound.models.layers.held_factors import HeldFactors
from expound.models.layers.layer_parts import AttentionParts, Layer, LayerParts, Norm, Record, get_layer_parts, to_norm
from expound.models.layers.operations import mark_input
from expound.models.passes.capture import intercept_inputs, record_attention
from expound.models.passes.layer_calls import LayerCall, find_record, record_layer_calls
from expound.models.state import freeze_weights

CAPTURE = Capture(attentions=True, heads=True)
Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer at one example of L positions.

    Attributes:
        parts: the layer's weights, `LayerParts` if all of them are understood.
        attention: [H, Q, L], attention probabilities of the last Q positions (usually all L), times the scale of the
            norm of attention's output, if it has one.
        values: [H, L, d_h], the values that attention mixes, with the value bias.
        x: [L, d], the layer's input.
        middle: [L, d], x plus the output of attention, before any norm.
        end: [L, d], the input of the last norm of a post-norm layer, or the output of a pre-norm one.
        scale: [L, 1], the scale of the norm of the feed-forward's output, if there is one.
        latent_scale: [L, 1], the scale of the norm inside of the projection to the values, if there is one.
        routing: [L, k] and [L, k], the chosen experts and their weights, if there are any.
    """

    parts: AttentionParts
    attention: Tensor
    values: Tensor
    x: Tensor
    middle: Tensor
    end: Tensor
    scale: Tensor | None = None
    latent_scale: Tensor | None = None
    routing: tuple[Tensor, Tensor] | None = None

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
        linearize: see `linearize_layer`, of this example.
    """

    layers: tuple[LayerState, ...]
    positions: Tensor
    final: Norm | None
    logits: Tensor
    record: Record
    linearize: Callable[[int], tuple[Linear, Tensor]]

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
    """Return the record of the model's layers as one pass shows them, proven once per loaded model.

    Attention, its norm and its projection compute what the layer adds to its input. Parts that do not compute the rest
    of the layer are left out of the record.

    Raises:
        ExpoundError: a layer that is not understood, or that its parts do not compute.
    """

    def prove() -> Record:
        record, alone, tolerance = find_record(model, batch), take_example(model, batch), get_tolerance(model)
        ends: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            last = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
            if isinstance(last, Tensor) and last.ndim == 3:
                ends.append(to_float32(last))

        try:
            with get_base_model(model.model).register_forward_hook(keep):
                (trace,) = trace_examples(model, alone, record=record)
            layers = list(record.layers)
            unknown = check_parts(trace, tolerance, *(end[0, trace.positions] for end in ends[:1]))
            if unknown:
                check_rest_of_layers(model, alone, record, unknown)
            for number in unknown:
                layers[number] = replace(layers[number], feed_forward=None)
        except (AttributeError, LookupError, RuntimeError, ValueError) as error:
            raise ExpoundError(f"the layers of {type(model.model).__name__} are not understood: {error}") from error
        return replace(record, layers=tuple(layers))

    record: Record = remember(model, "proven record", prove)
    return record


def check_decomposition(model: ExplainedModel, probe: Probe) -> str:
    """Check that the parts of every layer compute what the layer computes; an ExpoundError says why not."""
    get_record(model, probe.batch)
    return ""


# The checks of models lie below the explainers, and this one needs the traces of decompositions.
CHECKS["decomposition"] = check_decomposition


def check_parts(trace: Trace, tolerance: float, last: Tensor | None = None) -> list[int]:
    """Return the layers whose known parts compute what attention adds, but not what the whole layer gives.

    Args:
        trace: the pass.
        tolerance: the share of the largest number that counts as rounding.
        last: [L, d], the last hidden states, after the final norm.

    Raises:
        ExpoundError: parts of attention that do not compute what it adds, or something between two layers.
    """
    following = [state.x for state in trace.layers[1:]]
    unknown = []
    for number, (state, after) in enumerate(zip(trace.layers, [*following, last], strict=True)):
        own = state.answer(torch.arange(len(state.x), device=state.x.device))
        pairs = [(add_attention(state, state.values), state.middle)]
        if after is not None:
            final = trace.final if after is last else None
            pairs.append((own if final is None else final(own), after))
        if not all(_are_close(found, expected, tolerance) for found, expected in pairs):
            raise ExpoundError(f"layer {number} is not what its attention, norms and feed-forward compute")
        if not isinstance(state.parts, LayerParts):
            unknown.append(number)
            continue
        pairs = list(zip(compute_by_parts(state, state.parts), (state.middle, own), strict=True))
        # A value's bias reaches every position whole only if rows of attention sum to 1.
        if state.parts.value.bias is not None:
            shares = state.attention.sum(-1)
            pairs.append((shares, torch.ones_like(shares)))
        if not all(_are_close(found, expected, tolerance) for found, expected in pairs):
            unknown.append(number)
    return unknown


def check_rest_of_layers(model: ExplainedModel, alone: Batch, record: Record, numbers: Sequence[int]) -> None:
    """Raise ExpoundError if positions of an example influence others by more than the attention of these layers."""
    with torch.enable_grad():
        calls = record_layer_calls(model, alone, model.embed(alone).detach().requires_grad_())
    for number in numbers:
        call, kept = calls[number], list[Tensor]()
        if not call.depends_on_hidden_alone:
            raise ExpoundError(f"layer {number} reads more of the input than the hidden states before it")
        part = get_module(call.layer, record.layers[number].attention.added)

        def keep_first(module: nn.Module, inputs: Any, output: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(output)
            return kept[0]

        # One position is another one's; what attention adds is as before.
        changed = call.hidden.clone()
        changed[:, 0] = changed[:, 1]
        with record_attention(model.model, Capture()), part.register_forward_hook(keep_first):
            before, after = call.run(call.hidden), call.run(changed)
        if not _are_close(after[:, 1:], before[:, 1:], get_tolerance(model)):
            raise ExpoundError(f"layer {number} mixes positions by more than its attention")


def _are_close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def add_attention(state: LayerState, values: Tensor) -> Tensor:
    """Return the hidden states after the attention's residual connection, for the values [H, L, d_h] that it mixed."""
    return state.parts.output((state.attention @ values).transpose(0, 1).flatten(1)) + state.x


def compute_by_parts(state: LayerState, parts: LayerParts) -> tuple[Tensor, Tensor]:
    """Return the hidden states after the attention's residual connection, and those after the layer, by its weights."""
    before = parts.norms[0](state.x) if parts.norm_first else state.x
    values = parts.value(before) if state.latent_scale is None else parts.value(before) * state.latent_scale
    middle = add_attention(state, values.unflatten(-1, (len(state.values), -1)).transpose(0, 1))
    between = parts.norms[int(parts.norm_first)](state.x if parts.is_parallel else middle)
    wide = parts.into(between)
    slope = activations.zero_origin_slope(parts.activation)
    if parts.gate is None:
        active = slope(wide) * wide
    else:
        height = parts.gate(between)
        active = slope(height) * height * wide
    out = parts.out(active)
    if parts.experts is not None and state.routing is not None:
        out = out + parts.experts.propagate(between[:, None], between, *state.routing)[:, 0]
    if state.scale is not None:
        out = out * state.scale
    if parts.norm_first:
        return middle, out + middle
    return middle, parts.norms[1](out + between)


@contextmanager
def keep_outputs(modules: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Yield a list of the modules' outputs, in the order of their calls inside the block."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs.append(output if isinstance(output, Tensor) else output[0])

    with ExitStack() as scope:
        # ALBERT runs one layer many times.
        for module in dict.fromkeys(modules):
            scope.enter_context(module.register_forward_hook(keep))
        yield outputs


@contextmanager
def keep_routings(experts: Iterable[nn.Module]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield a list of the chosen experts and their weights, in the order of the calls inside the block."""
    routings: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        chosen, weights = (*inputs[1:], *named.values())
        routings.append((chosen, weights))

    with ExitStack() as scope:
        for module in dict.fromkeys(experts):
            scope.enter_context(module.register_forward_hook(keep, with_kwargs=True))
        yield routings


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
    layers = list(zip(blocks, record.layers, strict=True))
    parts = [get_layer_parts(block, layer) for block, layer in layers]

    def find(get_path: Callable[[Layer], str | None]) -> list[nn.Module]:
        paths = [(block, get_path(layer)) for block, layer in layers]
        return [get_module(block, path) for block, path in paths if path is not None]

    with ExitStack() as scope:
        x = scope.enter_context(intercept_inputs(blocks))
        ends = scope.enter_context(keep_outputs(blocks))
        added = scope.enter_context(keep_outputs(find(lambda layer: layer.attention.added)))
        before_last = scope.enter_context(intercept_inputs(find(lambda layer: layer.last_norm)))
        normed = scope.enter_context(intercept_inputs(find(lambda layer: layer.attention.norm_of_output)))
        latent = scope.enter_context(intercept_inputs(find(lambda layer: layer.attention.latent_norm)))
        fed = scope.enter_context(intercept_inputs(find(lambda layer: layer.norm_of_out)))
        routings = scope.enter_context(keep_routings(find(lambda layer: layer.experts)))
        outputs = model(batch, capture=replace(CAPTURE, first_query=first_query))
    # The lists have entries of the layers that have the part, in their order.
    of_layer = []
    for n, (layer, own) in enumerate(zip(record.layers, parts, strict=True)):
        end = ends[n] if layer.last_norm is None else before_last.pop(0)
        scales = list[Tensor | None]()
        watched = (
            (layer.attention.norm_of_output, own.norm_of_output, normed),
            (layer.attention.latent_norm, getattr(own, "latent_norm", None), latent),
            (layer.norm_of_out, getattr(own, "norm_of_out", None), fed),
        )
        for path, norm, inputs in watched:
            before = None if path is None else inputs.pop(0)
            if norm is None or before is None:
                scales.append(None)
            else:
                scales.append(norm.scale(before).reshape(*x[n].shape[:-1], 1))
        routing = routings.pop(0) if layer.experts else ()
        chosen = [part.reshape(*x[n].shape[:-1], -1) for part in routing]
        of_layer.append((added[n].reshape(x[n].shape), end, scales, chosen))

    def trace(row: int) -> Trace:
        positions = batch.attended[row].nonzero().flatten()
        index = index_positions(positions)
        queries = index_positions(positions[positions >= first_query] - first_query)
        states = []
        for n, (sum_of_heads, end, (scale, latent_scale, scale_of_out), chosen) in enumerate(of_layer):
            # In half precision the many small terms of a decomposition would not sum to the hidden state.
            attention = to_float32(outputs.attentions[n][row][:, queries][:, :, index])
            if scale is not None:
                attention = attention * scale[row, index][-attention.shape[1] :]
            own = to_float32(x[n][row, index])
            state = LayerState(
                parts=parts[n],
                attention=attention,
                values=to_float32(outputs.values[n][row][:, index]),
                x=own,
                middle=own + to_float32(sum_of_heads[row, index]) * record.layers[n].attention.factor,
                end=to_float32(end[row, index]),
                scale=None if scale_of_out is None else scale_of_out[row, index],
                latent_scale=None if latent_scale is None else latent_scale[row, index],
                routing=(chosen[0][row, index], to_float32(chosen[1][row, index])) if chosen else None,
            )
            states.append(state)
        final = to_norm(get_module(model.model, record.final_norm)) if record.final_norm else None
        # One pass records the calls of all layers, if any of them has to run again.
        get_calls = cache(lambda: record_layer_calls(model, batch.select([row]).trim_padding()[0]))
        linearize = partial(linearize_layer, model, batch, get_calls)
        return Trace(tuple(states), positions, final, to_float32(outputs.logits[row]), record, linearize)

    return Traces(outputs.logits, trace)


def linearize_layer(
    model: ExplainedModel, batch: Batch, get_calls: Callable[[], list[LayerCall]], number: int
) -> tuple[Linear, Tensor]:
    """Run a layer again, and return it as a linear map of components [L, K, d] → [L, K, d], and its output [L, d].

    All that is not linear in it is held at the example, as in `decompx_linear`.

    Raises:
        ExpoundError: not everything in the model is linear then.
    """
    reason = find_failure(model, "linear_rules", Probe(model, batch))
    if reason:
        raise ExpoundError(f"the weights of layer {number} are not all understood, and {reason}")
    call = get_calls()[number]
    hidden = mark_input(call.hidden.detach().requires_grad_())
    with (
        torch.enable_grad(),
        freeze_weights(model.model),
        record_attention(model.model, Capture(differentiable_twice=True)),
        apply_backward_rules(model.model, HeldFactors()),
    ):
        output = call.run(hidden)
        slope = torch.zeros_like(output, requires_grad=True)
        (gradient,) = torch.autograd.grad(output, hidden, slope, create_graph=True)

    def run(components: Tensor) -> Tensor:
        # The gradient is linear in the slope, and its own derivative is the map itself.
        columns = components.to(slope.dtype).transpose(0, 1)[:, None]
        (mapped,) = torch.autograd.grad(gradient, slope, columns, retain_graph=True, is_grads_batched=True)
        return to_float32(mapped[:, 0].transpose(0, 1))

    return run, to_float32(output[0].detach())


def read_traces(
    model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], rows: Callable[[Trace, Tensor], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield [B, N, L] for each target, `rows` [N, l] of every trace's readout weights [l], and the pass's logits."""
    traces = trace_examples(model, batch)
    for target in targets:
        readout = model.readout_weights(batch, select_target(model, batch, target, traces.logits))
        spread = []
        for trace, weights in zip(traces, readout, strict=True):
            spread.append(trace.spread(rows(trace, weights[trace.positions]), batch.length))
        yield torch.stack(spread), traces.logits.detach()


def index_positions(positions: Tensor) -> slice | Tensor:
    """Return an index for these positions: a slice, which copies no data, if they are consecutive."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if stop - start == len(positions):
        return slice(start, stop)
    return positions
