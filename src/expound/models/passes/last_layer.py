"""Passes without the parts of the last layer that the answer does not depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from expound.models.families import FAMILIES, Family
from expound.models.hugging_face import HuggingFaceModel
from expound.models.layers.architecture import get_layers, get_module

# Blocks may be nested; the hooks of two blocks on one layer would cut its positions twice.
_SHORTENED: ContextVar[tuple[nn.Module, ...]] = ContextVar("expound_shortened_layers", default=())


@contextmanager
def skip_unread_positions(model: HuggingFaceModel, *, attention: bool = True) -> Iterator[None]:
    """Let the last layer compute, inside the block, only the positions at which the head reads.

    This saves most of a layer, and logits stay the same. It applies to heads that read the first position, in families
    with a known part `after_attention`, and to language models whose family has a record; others run in full.

    Args:
        model: a model whose last layer's hidden states are not needed inside the block.
        attention: whether the last layer's attention is needed at all positions.
    """
    family = FAMILIES.get(model.config.model_type)
    if family is not None and model.task.name == "generation" and family.norm_first and not model.is_encoder_decoder:
        with _compute_predicting_columns(model, family):
            yield
        return
    if family is None or family.after_attention is None or model.task.is_read_at_positions:
        yield
        return
    last = get_layers(model.model)[-1]
    with ExitStack() as scope:
        scope.enter_context(get_module(last, family.after_attention).register_forward_pre_hook(_keep_first_position))
        # Only the queries can be skipped: the first position attends to the keys and values of all others.
        if not attention:
            for path in family.attention.projections[:1]:
                _narrow(get_module(last, path), lambda: slice(1), scope)
        yield


def _keep_first_position(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first = []
    for value in inputs:
        first.append(value[:, :1] if isinstance(value, Tensor) else value)
    return tuple(first)


def _narrow(module: nn.Module, columns: Callable[[], slice], scope: ExitStack) -> None:
    """Let the module compute only these columns of its input [B, L, d] and return zeros at the others."""
    padding = (0, 0)

    def narrow(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal padding
        start, stop, _ = columns().indices(inputs[0].shape[1])
        padding = (start, inputs[0].shape[1] - stop)
        # Copied once here; each projection of the feed-forward would copy a strided input anew.
        return (inputs[0][:, start:stop].contiguous(), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return nn.functional.pad(output, (0, 0, *padding))

    scope.enter_context(module.register_forward_pre_hook(narrow))
    scope.enter_context(module.register_forward_hook(widen))


@contextmanager
def _compute_predicting_columns(model: HuggingFaceModel, family: Family) -> Iterator[None]:
    """Let the last layer's output projection and feed-forward compute only columns that predict response tokens."""
    last = get_layers(model.model)[-1]
    if last in _SHORTENED.get():
        yield
        return
    columns = slice(None)

    def read_columns(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal columns
        # `logits_to_keep` names the columns that the head reads, see `GeneratingModel`.
        kept = kwargs.get("logits_to_keep")
        columns = slice(None)
        if isinstance(kept, Tensor):
            columns = slice(int(kept[0]), int(kept[-1]) + 1)

    token = _SHORTENED.set((*_SHORTENED.get(), last))
    with ExitStack() as scope:
        scope.callback(_SHORTENED.reset, token)
        scope.enter_context(model.model.register_forward_pre_hook(read_columns, with_kwargs=True))
        for path in (family.attention.output, family.feed_forward.into.rpartition(".")[0]):
            _narrow(get_module(last, path), lambda: columns, scope)
        yield
