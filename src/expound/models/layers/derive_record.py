"""The record of a layer's parts, derived from one pass of the loaded model by equal numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.layers import activations
from expound.models.layers.architecture import get_layers
from expound.models.layers.layer_parts import is_linear_layer, is_norm_layer
from expound.models.layers.record import Attention, FeedForward, Head, Record
from expound.models.outputs import Capture, Outputs

CLOSE = 1e-4
"""The relative difference of numbers that are computed in another order."""
ADAPTER = re.compile(r"base_layer|lora_|modules_to_save\.[^.]+$|original_module$")
"""Paths of an adapter's own layers, which are part of the layer that they adapt."""
COPY = re.compile(r"\.(modules_to_save\.[^.]+|original_module)(?=\.)")
"""The part of a path that names one of several copies of a head; PEFT resolves paths without it to the copy in use."""


@dataclass(frozen=True, slots=True)
class Call:
    """A module's call: its path in the layer, and the first rows [L, ...] of its input and output."""

    path: str
    module: nn.Module
    input: Tensor
    output: Tensor


@dataclass(eq=False)
class Trail:
    """The calls in one run of a layer, with the layer's input and output [L, d]."""

    layer: nn.Module
    input: Tensor
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    calls: list[Call] = field(default_factory=list)

    def find(self, kind: Any, **given: Tensor) -> Call:
        """Return the first call of this kind of module with equal `input` or `output`; raise LookupError if none."""
        for call in self.calls:
            if kind(call.module) and all(_is_equal(getattr(call, name), value) for name, value in given.items()):
                return call
        raise LookupError


def derive_record(model: Any, batch: Batch) -> Record:
    """Return the record of a model's layers and head, from one pass over one example.

    A part is known by what it reads and gives: the projection to the values gives the numbers that attention gets, the
    one after attention reads what attention gives, and so on. Whoever uses the record proves what it assumes of it.

    Raises:
        ExpoundError: a layer that is no attention and feed-forward with residual connections; its number is named.
    """
    trails, others, outputs = _watch(model, batch)
    records = []
    for number, trail in enumerate(trails):
        try:
            values = outputs.values[number][0]
            mixed = outputs.attentions[number][0] @ values
            records.append(_derive_layer(trail, *(each.transpose(0, 1).flatten(1) for each in (values, mixed))))
        except (LookupError, ExpoundError, RuntimeError, StopIteration) as error:
            reason = str(error) if isinstance(error, ExpoundError) else "not an attention and a feed-forward"
            raise ExpoundError(f"layer {number} of {type(model.model).__name__} is not understood: {reason}") from error
    first = records[0]
    if any(record != first for record in records):
        raise ExpoundError(f"the layers of {type(model.model).__name__} are not all alike")
    attention, feed_forward, norm_first = first
    norms = [call for call in others if is_norm_layer(call.module)]
    final = next((call.path for call in norms if _is_equal(call.input, trails[-1].output)), None)
    return Record(attention, feed_forward, norm_first, final if norm_first else None, _derive_head(others))


def _watch(model: Any, batch: Batch) -> tuple[list[Trail], list[Call], Outputs]:
    """Return the trails of the layers, the calls of norms and linear layers elsewhere, and the pass's outputs."""
    layers, trails, others = get_layers(model.model), list[Trail](), list[Call]()
    inside = {module for layer in layers for module in layer.modules()}
    with ExitStack() as scope:
        # ALBERT runs one layer many times.
        for layer in dict.fromkeys(layers):
            scope.enter_context(_follow(layer, trails))
        for name, module in model.model.named_modules():
            if (is_norm_layer(module) or is_linear_layer(module)) and module not in inside and not ADAPTER.search(name):
                scope.enter_context(_keep_calls(module, name, others.append))
        outputs: Outputs = model.run_pass(batch, None, Capture(attentions=True, heads=True))
    if [trail.layer for trail in trails] != list(layers):
        raise ExpoundError(f"the layers of {type(model.model).__name__} run in another order, or some did not run")
    return trails, others, outputs


@contextmanager
def _follow(layer: nn.Module, trails: list[Trail]) -> Iterator[None]:
    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        trails.append(Trail(layer, _take_row(args[0] if args else kwargs["hidden_states"])))

    def end(module: nn.Module, args: Any, output: Any) -> None:
        trails[-1].output = _take_row(output if isinstance(output, Tensor) else output[0])

    def keep(call: Call) -> None:
        trails[-1].calls.append(call)

    with ExitStack() as scope:
        scope.enter_context(layer.register_forward_pre_hook(begin, with_kwargs=True))
        scope.enter_context(layer.register_forward_hook(end))
        for path, module in layer.named_modules():
            is_known = is_linear_layer(module) or _is_norm(module) or activations.find_activation_name(module)
            if is_known and not ADAPTER.search(path):
                scope.enter_context(_keep_calls(module, path, keep))
        yield


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm, or the identity, which takes its place in ModernBERT's first layer."""
    return is_norm_layer(module) or isinstance(module, nn.Identity)


@contextmanager
def _keep_calls(module: nn.Module, path: str, keep: Callable[[Call], None]) -> Iterator[None]:
    def end(module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(output, Tensor) and isinstance(args[0], Tensor):
            keep(Call(COPY.sub("", path), module, _take_row(args[0]), _take_row(output)))

    with module.register_forward_hook(end):
        yield


def _take_row(value: Tensor) -> Tensor:
    """Return the rows [L, d] of the one example, also where its axis was flattened."""
    return (value[0] if value.ndim > 2 else value).detach()


def _derive_layer(trail: Trail, values: Tensor, mixed: Tensor) -> tuple[Attention, FeedForward, bool]:
    source, columns = _find_columns(trail, values)
    output = trail.find(is_linear_layer, input=mixed)
    norm = next((call for call in trail.calls if _is_norm(call.module) and _is_equal(call.input, trail.input)), None)
    if not _is_equal(source.input, trail.input if norm is None else norm.output):
        raise LookupError
    added, norm_of_output = _apply_norm_of_output(trail, output, trail.input)
    before = trail.input + added
    norm_first = norm is not None or norm_of_output is not None
    if not norm_first:
        norm = trail.find(is_norm_layer, input=before)
        before = norm.output
    attention = Attention(
        source.path, output.path, None if norm is None else norm.path, norm_of_output=norm_of_output, columns=columns
    )
    return attention, _derive_feed_forward(trail, before, norm_first), norm_first


def _find_columns(trail: Trail, values: Tensor) -> tuple[Call, tuple[int, ...] | None]:
    """Return the projection that gives the values, and which of its outputs they are; None: all, in their order."""
    for call in trail.calls:
        if not is_linear_layer(call.module) or len(call.output) != len(values):
            continue
        columns = _match_columns(call.output, values)
        if columns is not None:
            return call, _shorten(call, columns)
    raise ExpoundError("no projection gives the values of its attention")


def _match_columns(output: Tensor, wanted: Tensor) -> tuple[int, ...] | None:
    """Return which columns of an output [L, n] equal the columns of another tensor [L, m]; None: one has no equal."""
    place = {tuple(column): index for index, column in enumerate(output.T.tolist())}
    found = [place.get(tuple(column)) for column in wanted.T.tolist()]
    return None if None in found else tuple(index for index in found if index is not None)


def _apply_norm_of_output(trail: Trail, output: Call, residual: Tensor) -> tuple[Tensor, str | None]:
    """Return what a branch adds to the residual stream, and the norm of its output, if there is one."""
    for call in trail.calls:
        # Beside a huge output, the sum with the residual looks like the output.
        is_sum = _is_equal(call.input, residual + output.output)
        if is_norm_layer(call.module) and _is_equal(call.input, output.output) and not is_sum:
            return call.output, call.path
    return output.output, None


def _derive_feed_forward(trail: Trail, before: Tensor, norm_first: bool) -> FeedForward:
    """Return the feed-forward on `before`: the residual stream in pre-norm layers, else the first norm's output."""
    norm = next((call for call in trail.calls if is_norm_layer(call.module) and _is_equal(call.input, before)), None)
    point = norm.output if norm_first and norm is not None else before
    act = next(call for call in reversed(trail.calls) if activations.find_activation_name(call.module))
    readers = [call for call in trail.calls if is_linear_layer(call.module) and _is_equal(call.input, point)]
    wide, wide_columns = next(
        (call, columns) for call in readers if (columns := _match_columns(call.output, act.input)) is not None
    )
    into, columns, out = _find_product(trail, readers, act, wide, wide_columns)
    is_gated = (into, columns) != (wide, wide_columns)
    added, norm_of_output = _apply_norm_of_output(trail, out, before)
    if not norm_first:
        norm = trail.find(is_norm_layer, input=before + added, output=trail.output)
    return FeedForward(
        into.path, act.path, out.path, norm=None if norm is None else norm.path,
        gate=wide.path if is_gated else None, norm_of_output=norm_of_output,
        columns=_shorten(into, columns), gate_columns=_shorten(wide, wide_columns) if is_gated else None,
    )  # fmt: skip


def _find_product(
    trail: Trail, readers: Sequence[Call], act: Call, wide: Call, columns: tuple[int, ...]
) -> tuple[Call, tuple[int, ...], Call]:
    """Return the layer that the activation's output is multiplied by, which of its outputs, and the layer behind.

    Without a gate these are the activation's own input and the layer that reads its output.
    """
    behind = [call for call in trail.calls if is_linear_layer(call.module) and call.input.shape == act.output.shape]
    for call in behind:
        if _is_equal(call.input, act.output):
            return wide, columns, call
        for other in readers:
            taken = set(columns) if other is wide else set()
            rest = tuple(index for index in range(other.output.shape[1]) if index not in taken)
            if len(rest) == len(columns) and _is_equal(call.input, act.output * other.output[:, list(rest)]):
                return other, rest, call
    raise LookupError


def _shorten(call: Call, columns: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return None if the columns are all of a call's outputs, in their order."""
    return None if columns == tuple(range(call.output.shape[1])) else columns


def _derive_head(calls: Sequence[Call]) -> Head:
    """Return a head of one linear layer, the last one that ran, or of others before it: [dense → activation → norm]."""
    linear = [call for call in calls if is_linear_layer(call.module)]
    if not linear:
        return Head("")
    *before, last = linear
    norm = next((call for call in calls if is_norm_layer(call.module) and _is_equal(call.output, last.input)), None)
    point = last.input if norm is None else norm.input
    for call in reversed(before):
        if call.output.shape != point.shape:
            continue
        # Some activations differ by less than rounding where numbers are small: the nearest one is taken.
        distances = {}
        for name, slope in activations.SLOPES.items():
            distances[name] = float((slope(call.output) * call.output - point).abs().max())
        name = min(distances, key=lambda name: distances[name])
        if name != "linear" and _is_equal(activations.SLOPES[name](call.output) * call.output, point):
            return Head(last.path, call.path, name, None if norm is None else norm.path)
    return Head(last.path)


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors [L, d] are equal but for rounding, as a share of the largest number."""
    if one.shape != other.shape:
        return False
    tolerance = max(CLOSE, 4 * torch.finfo(one.dtype).eps)
    return bool((one - other).abs().max() <= tolerance * other.abs().max())
