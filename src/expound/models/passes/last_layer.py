"""Passes without the parts of the last layer that the prediction does not depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.checks import is_exact
from expound.models.hugging_face import HuggingFaceModel
from expound.models.layers.architecture import get_layers, get_module
from expound.models.passes.find_record import find_record
from expound.models.probe import MODEL_ERRORS, remember

# Blocks may be nested; the hooks of two blocks on one layer would cut its positions twice.
_SHORTENED: ContextVar[tuple[nn.Module, ...]] = ContextVar("expound_shortened_layers", default=())


@contextmanager
def skip_unread_positions(model: HuggingFaceModel, batch: Batch) -> Iterator[None]:
    """Let the last layer compute, inside the block, only the positions at which the head reads.

    This saves most of a layer, and logits stay the same. It applies to heads that read the first position, where the
    part of a layer that adds the residual to attention's output is a module, and to language models with norms first.
    Where this model predicts otherwise when the skipped positions are NaN, passes run in full.

    Args:
        model: a model whose last layer's hidden states are not needed inside the block.
        batch: examples, on one of which the shortcut is tried at the first call.
    """
    paths: list[str] = remember(model, "parts of single positions", lambda: _find_parts(model, batch))
    shorten = _compute_predicting_columns if model.task.is_generated else _compute_first_position
    if not paths:
        yield
        return

    def run(alone: Batch) -> Tensor:
        with ExitStack() as trial:
            shorten(model, get_layers(model.model)[-1], paths, torch.nan, trial)
            logits: Tensor = model(alone).logits
        return logits

    before = _SHORTENED.get()
    with ExitStack() as scope:
        if model.model not in before and is_exact(model, "unread positions", batch, run):
            scope.callback(_SHORTENED.reset, _SHORTENED.set((*before, model.model)))
            shorten(model, get_layers(model.model)[-1], paths, 0.0, scope)
        yield


def _find_parts(model: HuggingFaceModel, batch: Batch) -> list[str]:
    """Return the paths of the parts of a layer that compute only single positions and can be cut; empty if none."""
    if model.task.is_read_at_positions and not model.task.is_generated:
        return []
    try:
        last = find_record(model, batch).layers[-1]
    except (ExpoundError, *MODEL_ERRORS):
        return []
    attention, feed_forward = last.attention, last.feed_forward
    if attention.value is None or feed_forward is None:
        return []
    if model.task.is_generated:
        found = [attention.output, feed_forward.into.rpartition(".")[0]] if last.norm_first else []
    else:
        found = [attention.output.rpartition(".")[0]]
    # A part that has the values, too, reads all positions.
    return found if all(path and not attention.value.startswith(f"{path}.") for path in found) else []


def _compute_first_position(
    model: HuggingFaceModel, last: nn.Module, paths: list[str], _: float, scope: ExitStack
) -> None:
    """Let the last layer compute only the first position after its attention."""
    length = 0

    def read_length(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal length
        length = inputs[0].shape[1]

    def keep_first_position(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        first = []
        for value in inputs:
            first.append(value[:, :1] if isinstance(value, Tensor) else value)
        return tuple(first)

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Tensor):
            return (widen(module, inputs, output[0]), *output[1:])
        # A head that reads these positions in longer texts only must not predict. In training they are not NaN, since
        # a zero gradient times NaN would reach the weights of modules after the layer.
        is_trained = torch.is_grad_enabled() and any(weight.requires_grad for weight in model.parameters())
        fill = 0.0 if is_trained else torch.nan
        return nn.functional.pad(output, (0, 0, 0, length - output.shape[1]), value=fill)

    scope.enter_context(last.register_forward_pre_hook(read_length))
    scope.enter_context(get_module(last, paths[0]).register_forward_pre_hook(keep_first_position))
    scope.enter_context(last.register_forward_hook(widen))


def _compute_predicting_columns(
    model: HuggingFaceModel, last: nn.Module, paths: list[str], fill: float, scope: ExitStack
) -> None:
    """Let the last layer's output projection and feed-forward compute only columns that predict response tokens."""
    columns, length = slice(None), 0

    def read_columns(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal columns
        # `logits_to_keep` names the columns that the head reads, see `GeneratingModel`.
        kept = kwargs.get("logits_to_keep")
        columns = slice(None)
        if isinstance(kept, Tensor):
            columns = slice(int(kept[0]), int(kept[-1]) + 1)

    def narrow(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal length
        length = inputs[0].shape[1]
        # Copied once here; each projection of the feed-forward would copy a strided input anew.
        return (inputs[0][:, columns].contiguous(), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        start = columns.start or 0
        return nn.functional.pad(output, (0, 0, start, length - start - output.shape[1]), value=fill)

    scope.enter_context(model.model.register_forward_pre_hook(read_columns, with_kwargs=True))
    for path in paths:
        part = get_module(last, path)
        scope.enter_context(part.register_forward_pre_hook(narrow))
        scope.enter_context(part.register_forward_hook(widen))
