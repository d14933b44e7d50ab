"""The record of a layer's parts, derived from one pass of the loaded model by equal numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture, Outputs
from expound.models.layers import activations
from expound.models.layers.architecture import get_layers
from expound.models.layers.layer_parts import (
    Attention,
    FeedForward,
    Head,
    Layer,
    Record,
    is_experts,
    is_linear_layer,
    is_norm_layer,
)
from expound.models.layers.operations import ACTIVATIONS_MODULE

CLOSE = 1e-4
"""The relative difference of numbers that are computed in another order."""
ADAPTER = re.compile(r"base_layer|lora_|modules_to_save\.[^.]+$|original_module$")
"""Paths of an adapter's own layers, which are part of the layer that they adapt."""
COPY = re.compile(r"\.(modules_to_save\.[^.]+|original_module)(?=\.)")
"""The part of a path that names one of several copies of a head; PEFT resolves paths without it to the copy in use."""


@dataclass(frozen=True, slots=True, eq=False)
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
    one after attention reads what attention gives, and so on. Methods prove what they assume.

    Raises:
        ExpoundError: a layer to which attention is not added; its number is named.
    """
    trails, others, outputs = _watch(model, batch)
    layers = []
    for number, trail in enumerate(trails):
        try:
            values = outputs.values[number][0]
            mixed = outputs.attentions[number][0] @ values
            layers.append(_derive_layer(trail, *(each.transpose(0, 1).flatten(1) for each in (values, mixed))))
        except (LookupError, ExpoundError, RuntimeError) as error:
            reason = str(error) if isinstance(error, ExpoundError) else "its attention is not added to its input"
            raise ExpoundError(f"layer {number} of {type(model.model).__name__} is not understood: {reason}") from error
    norms = [call for call in others if is_norm_layer(call.module)] if layers[-1].norm_first else []
    final = next((call.path for call in norms if _is_equal(call.input, trails[-1].output)), None)
    return Record(tuple(layers), final, _derive_head(others))


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
            if path and not ADAPTER.search(path):
                scope.enter_context(_keep_calls(module, path, keep))
        yield


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm, or the identity, which takes its place in ModernBERT's first layer."""
    return is_norm_layer(module) or isinstance(module, nn.Identity)


@contextmanager
def _keep_calls(module: nn.Module, path: str, keep: Callable[[Call], None]) -> Iterator[None]:
    def end(module: nn.Module, args: Any, output: Any) -> None:
        # A mixture of experts also returns the routing.
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor):
            given = args[0] if args and isinstance(args[0], Tensor) else output.new_empty(0)
            keep(Call(COPY.sub("", path), module, _take_row(given), _take_row(output)))

    with module.register_forward_hook(end):
        yield


def _take_row(value: Tensor) -> Tensor:
    """Return the rows [L, d] of the one example, also where its axis was flattened."""
    while value.ndim > 2 and len(value) == 1:
        value = value[0]
    return value.detach()


def _derive_layer(trail: Trail, values: Tensor, mixed: Tensor) -> Layer:
    output = trail.find(is_linear_layer, input=mixed)
    added, norm_of_output = _apply_norm_of_output(trail, output, trail.input)
    factor, middle, reader = _find_factor(trail, added)
    after = (call for call in trail.calls if is_norm_layer(call.module) and _is_equal(call.output, trail.output))
    last = next(after, None)
    if last is None:
        if reader is None and not _is_output_added(trail, trail.output, middle):
            raise LookupError
        # The residual stream goes on behind the norm, as in a post-norm layer, but the layer ends otherwise.
        later = [] if reader is None else trail.calls[trail.calls.index(reader) + 1 :]
        norms = [call for call in later if is_norm_layer(call.module)]
        if reader is not None and any(_is_output_added(trail, call.input, reader.output) for call in norms):
            raise LookupError
        reads_input = (call for call in trail.calls if _is_norm(call.module) and _is_equal(call.input, trail.input))
        norm, before = next(reads_input, None), middle
    else:
        norm = trail.find(is_norm_layer, input=middle)
        before = norm.output
        if not _is_output_added(trail, last.input, before):
            raise LookupError
    _refuse_own_scales(trail)
    norm_first = last is None
    attention = Attention(
        output.path, None if norm is None else norm.path, norm_of_output=norm_of_output, factor=factor,
        **_find_value(trail, values, norm.output if norm is not None and norm_first else trail.input),
    )  # fmt: skip
    try:
        feed_forward = _derive_feed_forward(trail, before, norm_first)
    except (LookupError, RuntimeError, StopIteration):
        feed_forward = None
    return Layer(attention, feed_forward, norm_first, None if last is None else last.path)


def _find_factor(trail: Trail, added: Tensor) -> tuple[float, Tensor, Call | None]:
    """Return the factor of attention's output, its sum with the layer's input, and the part that reads that."""
    x = trail.input
    for call in trail.calls:
        if call.input.shape == x.shape and not torch.equal(call.input, x):
            factor = _fit_factor(call.input, x, added)
            if _is_sum(call.input, x, factor * added):
                return factor, call.input, call
    # Beside a parallel feed-forward, nothing reads the sum.
    return 1.0, x + added, None


def _is_output_added(trail: Trail, whole: Tensor, before: Tensor) -> bool:
    """Return whether a sum is the residual stream before and a multiple of what some part of the layer gives."""
    for call in trail.calls:
        has_shape = call.output.shape == whole.shape == before.shape
        # Beside a huge part, the sum looks like the part.
        is_other = has_shape and not torch.equal(call.output, whole)
        if is_other and _is_sum(whole, before, _fit_factor(whole, before, call.output) * call.output):
            return True
    return False


def _fit_factor(whole: Tensor, before: Tensor, part: Tensor) -> float:
    """Return the factor c with whole ≈ before + c · part by least squares, or 1 if it is that but for rounding."""
    rest, own = whole.double() - before.double(), part.double()
    size = float(own.norm())
    factor = float((rest * own).sum()) / max(size, torch.finfo(torch.float64).tiny) ** 2
    rounding = max(float((rest - factor * own).norm()), torch.finfo(whole.dtype).eps * float(whole.double().norm()) / 3)
    # A part that is smaller than the rounding of the sum tells no factor. One near 0 is no part.
    is_one = abs(factor - 1) * size <= CLOSE * size + 4 * rounding / math.sqrt(own.numel())
    return 1.0 if is_one or abs(factor) < CLOSE else factor


def _is_sum(whole: Tensor, one: Tensor, other: Tensor) -> bool:
    """Return whether one tensor is the sum of two, but for rounding; the second one may be much smaller."""
    eps = torch.finfo(whole.dtype).eps
    tolerance = max(CLOSE, 4 * eps) * other.abs().max() + 8 * eps * whole.abs().max()
    return bool((whole - one - other).abs().max() <= tolerance)


def _refuse_own_scales(trail: Trail) -> None:
    """Raise ExpoundError if the layer may multiply by a number of its own, which later training changes."""
    for path, module in trail.layer.named_modules():
        kind = type(module)
        # Norms and activations have learned numbers, too, which do not multiply the residual stream.
        is_harmless = "norm" in kind.__name__.lower() or kind.__module__ == ACTIVATIONS_MODULE
        if is_harmless or is_linear_layer(module) or ADAPTER.search(path):
            continue
        for name, weight in module.named_parameters(recurse=False):
            if weight.numel() in (1, trail.input.shape[-1]) and bool((weight == weight.flatten()[0]).all()):
                raise ExpoundError(f"{path}.{name}".lstrip(".") + " may be a scale, which training changes")


def _find_value(trail: Trail, values: Tensor, point: Tensor) -> dict[str, Any]:
    """Return the projection that gives the values from `point`, or two; nothing if they come about otherwise."""
    try:
        source, columns = _find_columns(trail, values)
        if _is_equal(source.input, point):
            return {"value": source.path, "columns": columns}
        norm = trail.find(is_norm_layer, output=source.input)
        latent, latent_columns = _find_columns(trail, norm.input)
    except LookupError:
        return {}
    if not _is_equal(latent.input, point):
        return {}
    own = {"latent": latent.path, "latent_columns": latent_columns, "latent_norm": norm.path}
    return {"value": source.path, "columns": columns} | own


def _find_columns(trail: Trail, values: Tensor) -> tuple[Call, tuple[int, ...] | None]:
    """Return the projection that gives the values, and which of its outputs they are; None: all, in their order."""
    for call in trail.calls:
        if not is_linear_layer(call.module) or len(call.output) != len(values):
            continue
        columns = _match_columns(call.output, values)
        if columns is not None:
            return call, _shorten(call, columns)
    raise LookupError


def _match_columns(output: Tensor, wanted: Tensor) -> tuple[int, ...] | None:
    """Return which columns of an output [L, n] equal the columns of another tensor [L, m]; None: one has no equal."""
    if output.ndim != 2 or wanted.ndim != 2:
        return None
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
    """Return the feed-forward that is added to `before`: the residual stream, or the first norm's output behind it."""
    norms = [call for call in trail.calls if is_norm_layer(call.module)]
    experts = next((call for call in trail.calls if is_experts(call.module)), None)
    dense = _find_activation(trail, experts)
    if experts is not None:
        reader = experts
    elif dense is not None:
        reader = dense[1]
    else:
        raise LookupError
    norm, is_parallel = next((call for call in norms if _is_equal(call.input, before)), None), False
    point = norm.output if norm_first and norm is not None else before
    if norm_first and not _is_equal(reader.input, point):
        # Beside attention. It may have a norm of its own, which runs after that of attention and may be equal to it.
        norm = next(call for call in reversed(norms) if _is_equal(call.input, trail.input))
        point, is_parallel = norm.output, True
    fields: dict[str, Any] = {"into": None, "activation": "", "out": ""}
    added = torch.zeros_like(before)
    if dense is not None and _is_equal(dense[1].input, point):
        act, wide, wide_columns = dense
        readers = [call for call in trail.calls if is_linear_layer(call.module) and _is_equal(call.input, point)]
        into, columns, out = _find_product(trail, readers, act, wide, wide_columns)
        added, norm_of_output = _apply_norm_of_output(trail, out, before)
        fields = {"into": into.path, "activation": act.path, "out": out.path, "norm_of_output": norm_of_output}
        fields["columns"] = _shorten(into, columns)
        if (into, columns) != (wide, wide_columns):
            fields |= {"gate": wide.path, "gate_columns": _shorten(wide, wide_columns)}
    if experts is not None and _is_equal(experts.input, point):
        added = added + experts.output
        fields["experts"] = experts.path
    if fields["into"] is None and "experts" not in fields:
        raise LookupError
    if not norm_first:
        norm = trail.find(is_norm_layer, input=before + added, output=trail.output)
    elif not _is_sum(trail.output, before, added):
        raise LookupError
    return FeedForward(**fields, norm=None if norm is None else norm.path, is_parallel=is_parallel)


def _find_activation(trail: Trail, experts: Call | None) -> tuple[Call, Call, tuple[int, ...]] | None:
    """Return the last activation outside of experts, and which outputs of which linear layer it reads, if any."""
    inside = "." if experts is None else f"{experts.path}."
    for act in reversed(trail.calls):
        if activations.find_activation_name(act.module) and not act.path.startswith(inside):
            for call in trail.calls:
                columns = _match_columns(call.output, act.input) if is_linear_layer(call.module) else None
                if columns is not None:
                    return act, call, columns
            return None
    return None


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
    """Return the columns, or None if they are all of a call's outputs in their order."""
    return None if columns == tuple(range(call.output.shape[1])) else columns


def _derive_head(calls: Sequence[Call]) -> Head:
    """Return the head: its last linear layer and, if it has one, the dense layer with activation and norm before."""
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
