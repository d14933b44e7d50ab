"""The record of a layer's parts, derived from one pass of the loaded model by equal numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.families import Attention, Family, FeedForward, Head
from expound.models.layers import activations
from expound.models.layers.architecture import get_base_model, get_layers
from expound.models.layers.layer_parts import is_linear_layer, is_norm_layer
from expound.models.outputs import Capture, Outputs

CLOSE = 1e-4
"""The relative difference of numbers that are computed in another order."""


@dataclass(frozen=True, slots=True)
class Call:
    """A module's call: its path in the layer, and the first rows [L, ...] of its input and output."""

    path: str
    module: nn.Module
    input: Tensor
    output: Tensor


class Trail:
    """The calls in one layer, with the layer's input and output [L, d]."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.calls: list[Call] = []
        self.input, self.output = torch.empty(0), torch.empty(0)

    def find(self, kind: Any, **given: Tensor) -> Call:
        """Return the first call of this kind of module with equal `input` or `output`; raise LookupError if none."""
        for call in self.calls:
            if kind(call.module) and all(_is_equal(getattr(call, name), value) for name, value in given.items()):
                return call
        raise LookupError


def derive_record(model: Any, batch: Batch) -> Family:
    """Return the record of a model's layers and head, from one pass over one example.

    A part is known by what it reads and gives: the projection to the values gives the numbers that attention gets, the
    one after attention reads what attention gives, and so on. `check_parts` proves the result.

    Raises:
        ExpoundError: a layer that is no attention and feed-forward with residual connections; its number is named.
    """
    trails, last, head, outputs = _watch(model, batch)
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
    final = next((call.path for call in last if _is_equal(call.input, trails[-1].output)), None)
    return Family(
        layers="", attention=attention, feed_forward=feed_forward, norm_first=norm_first,
        final_norm=final if norm_first else None, head=_derive_head(head), small_config={},
    )  # fmt: skip


def _watch(model: Any, batch: Batch) -> tuple[list[Trail], list[Call], list[Call], Outputs]:
    """Return the trails of the layers, the calls of other norms and of other linear layers, and the pass's outputs."""
    layers, base = get_layers(model.model), get_base_model(model.model)
    trails, last, head = [Trail(layer) for layer in layers], list[Call](), list[Call]()
    inside = {module for layer in layers for module in layer.modules()}
    with ExitStack() as scope:
        for trail in trails:
            scope.enter_context(_follow(trail))
        for name, module in base.named_modules():
            if is_norm_layer(module) and module not in inside:
                scope.enter_context(_record(module, name, last))
        for name, module in model.model.named_modules():
            if is_linear_layer(module) and module not in inside:
                scope.enter_context(_record(module, name, head))
        outputs: Outputs = model.run_pass(batch, None, Capture(attentions=True, heads=True))
    if len(set(layers)) != len(layers) or any(not trail.calls for trail in trails):
        raise ExpoundError(f"the layers of {type(model.model).__name__} are shared, or some did not run")
    return trails, last, head, outputs


@contextmanager
def _follow(trail: Trail) -> Iterator[None]:
    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        trail.input = _take_row(args[0] if args else kwargs["hidden_states"])
        trail.output = _take_row(output if isinstance(output, Tensor) else output[0])

    with ExitStack() as scope:
        scope.enter_context(trail.layer.register_forward_hook(keep, with_kwargs=True))
        for path, module in trail.layer.named_modules():
            # An adapter's own layers are part of the layer that they adapt.
            if "base_layer" in path or "lora_" in path:
                continue
            if is_linear_layer(module) or is_norm_layer(module) or activations.find_activation_name(module):
                scope.enter_context(_record(module, path, trail.calls))
        yield


@contextmanager
def _record(module: nn.Module, path: str, calls: list[Call]) -> Iterator[None]:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(output, Tensor) and isinstance(args[0], Tensor):
            calls.append(Call(path, module, _take_row(args[0]), _take_row(output)))

    with module.register_forward_hook(keep):
        yield


def _take_row(value: Tensor) -> Tensor:
    """Return the rows [L, d] of the one example, also where its axis was flattened."""
    return (value[0] if value.ndim > 2 else value).detach()


def _derive_layer(trail: Trail, values: Tensor, mixed: Tensor) -> tuple[Attention, FeedForward, bool]:
    source, columns = _find_columns(trail, values)
    output = trail.find(is_linear_layer, input=mixed)
    norm: Call | None = None
    if not _is_equal(source.input, trail.input):
        norm = trail.find(is_norm_layer, input=trail.input, output=source.input)
    added, norm_of_output = _apply_norm_of_output(trail, output)
    before = trail.input + added
    norm_first = norm is not None or norm_of_output is not None
    if not norm_first:
        norm = trail.find(is_norm_layer, input=before)
        before = norm.output
    attention = Attention(
        source.path, output.path, None if norm is None else norm.path, norm_of_output=norm_of_output,
        is_derived=True, columns=columns,
    )  # fmt: skip
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
    """Return which columns of an output [L, n] are those of another tensor [L, m], bit for bit; None: some are not."""
    place = {tuple(column): index for index, column in enumerate(output.T.tolist())}
    found = [place.get(tuple(column)) for column in wanted.T.tolist()]
    return None if None in found else tuple(index for index in found if index is not None)


def _apply_norm_of_output(trail: Trail, output: Call) -> tuple[Tensor, str | None]:
    """Return what a branch adds to the residual stream, and the norm of its output, if there is one."""
    for call in trail.calls:
        if is_norm_layer(call.module) and _is_equal(call.input, output.output):
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
    added, norm_of_output = _apply_norm_of_output(trail, out)
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
    """Return a head of one linear layer, the last one that ran, or of another one and an activation before it."""
    if not calls:
        return Head("")
    *before, last = calls
    for call in reversed(before):
        for name, slope in activations.SLOPES.items():
            if name != "linear" and _is_equal(slope(call.output) * call.output, last.input):
                return Head(last.path, dense=call.path, activation=name)
    return Head(last.path)


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors [L, d] are equal but for rounding, as a share of the largest number."""
    if one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= CLOSE * other.abs().max())
