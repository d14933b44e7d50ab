"""Passes without the parts of the last layer that the answer does not depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.checks import is_exact
from expound.models.families import FAMILIES, Family
from expound.models.hugging_face import HuggingFaceModel
from expound.models.layers.architecture import get_layers, get_module

# Blocks may be nested; the hooks of two blocks on one layer would cut its positions twice.
_SHORTENED: ContextVar[tuple[nn.Module, ...]] = ContextVar("expound_shortened_layers", default=())


@contextmanager
def skip_unread_positions(model: HuggingFaceModel, batch: Batch) -> Iterator[None]:
    """Let the last layer compute, inside the block, only the positions at which the head reads.

    This saves most of a layer, and logits stay the same. It applies to heads that read the first position, in families
    with a known part `after_attention`, and to language models whose family has a record; where it was seen to change
    the answer of this model, passes run in full. Where no gradient forbids it, skipped positions are NaN: a head
    that reads them after all gives no answer.

    Args:
        model: a model whose last layer's hidden states are not needed inside the block.
        batch: examples, on one of which the shortcut is tried at the first call.
    """
    family = FAMILIES.get(model.config.model_type)
    shorten: Callable[[HuggingFaceModel, Family, ExitStack], None] | None = None
    if family is not None and model.task.name == "generation":
        if family.norm_first and not model.is_encoder_decoder:
            shorten = _compute_predicting_columns
    elif family is not None and family.after_attention is not None and not model.task.is_read_at_positions:
        shorten = _compute_first_position
    if family is None or shorten is None or _find_last_layer(model) in _SHORTENED.get():
        yield
        return

    def run(alone: Batch) -> Tensor:
        with _shorten(model, family, shorten):
            logits: Tensor = model(alone).logits
        return logits

    with ExitStack() as scope:
        if is_exact(model, shorten.__name__, batch, run):
            scope.enter_context(_shorten(model, family, shorten))
        yield


def _find_last_layer(model: HuggingFaceModel) -> nn.Module | None:
    """Return the last layer; None if the model does not have the parts of its family."""
    try:
        return get_layers(model.model)[-1]
    except ExpoundError:
        return None


@contextmanager
def _shorten(
    model: HuggingFaceModel, family: Family, shorten: Callable[[HuggingFaceModel, Family, ExitStack], None]
) -> Iterator[None]:
    token = _SHORTENED.set((*_SHORTENED.get(), get_layers(model.model)[-1]))
    with ExitStack() as scope:
        scope.callback(_SHORTENED.reset, token)
        shorten(model, family, scope)
        yield


def _compute_first_position(model: HuggingFaceModel, family: Family, scope: ExitStack) -> None:
    """Let the last layer compute only the first position after its attention."""
    last = get_layers(model.model)[-1]
    length = 0

    def read_length(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal length
        length = inputs[0].shape[1]

    def fill(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        first = output if isinstance(output, Tensor) else output[0]
        # In the gradient of a norm's weight, NaN times a zero would be NaN.
        is_trained = torch.is_grad_enabled() and any(weight.requires_grad for weight in model.parameters())
        padded = _pad(first, 0, length - first.shape[1], 0.0 if is_trained else torch.nan)
        return padded if isinstance(output, Tensor) else (padded, *output[1:])

    scope.enter_context(last.register_forward_pre_hook(read_length))
    scope.enter_context(get_module(last, str(family.after_attention)).register_forward_pre_hook(_keep_first_position))
    scope.enter_context(last.register_forward_hook(fill))


def _keep_first_position(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first = []
    for value in inputs:
        first.append(value[:, :1] if isinstance(value, Tensor) else value)
    return tuple(first)


def _pad(values: Tensor, before: int, after: int, fill: float) -> Tensor:
    """Return values [B, L, d] with skipped positions before and after them."""
    return nn.functional.pad(values, (0, 0, before, after), value=fill)


def _narrow(module: nn.Module, columns: Callable[[], slice], scope: ExitStack) -> None:
    """Let the module compute only these columns of its input [B, L, d], and skip the others."""
    padding = (0, 0)

    def narrow(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal padding
        start, stop, _ = columns().indices(inputs[0].shape[1])
        padding = (start, inputs[0].shape[1] - stop)
        # Copied once here; each projection of the feed-forward would copy a strided input anew.
        return (inputs[0][:, start:stop].contiguous(), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        # The residual has all positions, and a gradient of zero times NaN would reach it.
        return _pad(output, *padding, 0.0 if torch.is_grad_enabled() else torch.nan)

    scope.enter_context(module.register_forward_pre_hook(narrow))
    scope.enter_context(module.register_forward_hook(widen))


def _compute_predicting_columns(model: HuggingFaceModel, family: Family, scope: ExitStack) -> None:
    """Let the last layer's output projection and feed-forward compute only columns that predict response tokens."""
    columns = slice(None)

    def read_columns(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal columns
        # `logits_to_keep` names the columns that the head reads, see `GeneratingModel`.
        kept = kwargs.get("logits_to_keep")
        columns = slice(None)
        if isinstance(kept, Tensor):
            columns = slice(int(kept[0]), int(kept[-1]) + 1)

    scope.enter_context(model.model.register_forward_pre_hook(read_columns, with_kwargs=True))
    for path in (family.attention.output, family.feed_forward.into.rpartition(".")[0]):
        _narrow(get_module(get_layers(model.model)[-1], path), lambda: columns, scope)
