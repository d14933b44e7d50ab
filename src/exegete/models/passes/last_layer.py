"""Leaving out what an answer does not depend on: the last layer at positions where nothing is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from exegete.models.families import FAMILIES, Family
from exegete.models.layers.architecture import get_layers, get_module

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel


_INSIDE: ContextVar[tuple[nn.Module, ...]] = ContextVar("exegete_shortened_layers", default=())
"""Last layers that are left out already where nothing is read."""


@contextmanager
def skip_unread_positions(model: ExplainedModel, *, attention: bool = True) -> Iterator[None]:
    """Inside the block the last layer ends with the positions alone at which the head reads, where that is known.

    Logits stay what they are; hidden states of the last layer must not be asked for, nor, with `attention` false, its
    attention. Heads that read the first position in families with a known part `after_attention`, and language models
    whose family has a record: it saves most of a layer. In others nothing happens.
    """
    family = FAMILIES.get(model.config.model_type)
    if family is not None and model.task.name == "generation" and family.norm_first and not model.is_encoder_decoder:
        with _where_tokens_are_said(model, family):
            yield
        return
    if family is None or family.after_attention is None or model.task.is_read_at_positions:
        yield
        return
    last = get_layers(model.model)[-1]
    with ExitStack() as scope:
        scope.enter_context(get_module(last, family.after_attention).register_forward_pre_hook(_first))
        for path in () if attention else family.attention.projections[:1]:
            _narrow(get_module(last, path), lambda: slice(1), scope)
        yield


def _first(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value[:, :1] if isinstance(value, Tensor) else value for value in inputs)


def _narrow(module: nn.Module, columns: Callable[[], slice], scope: ExitStack) -> None:
    """The module sees these columns [B, L, d] alone and gives zeros at the others."""
    beside = (0, 0)

    def narrow(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal beside
        begun, ended, _ = columns().indices(inputs[0].shape[1])
        beside = (begun, inputs[0].shape[1] - ended)
        return (inputs[0][:, begun:ended].contiguous(), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return nn.functional.pad(output, (0, 0, *beside))

    scope.enter_context(module.register_forward_pre_hook(narrow))
    scope.enter_context(module.register_forward_hook(widen))


@contextmanager
def _where_tokens_are_said(model: ExplainedModel, family: Family) -> Iterator[None]:
    """The projection behind the last layer's attention and its feed-forward see the predicting columns alone."""
    last = get_layers(model.model)[-1]
    if last in _INSIDE.get():
        yield
        return
    columns = slice(None)

    def begin(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal columns
        kept = named.get("logits_to_keep")
        columns = slice(int(kept[0]), int(kept[-1]) + 1) if isinstance(kept, Tensor) else slice(None)

    token = _INSIDE.set((*_INSIDE.get(), last))
    with ExitStack() as scope:
        scope.callback(_INSIDE.reset, token)
        scope.enter_context(model.model.register_forward_pre_hook(begin, with_kwargs=True))
        for path in (family.attention.output, family.feed_forward.into.rpartition(".")[0]):
            _narrow(get_module(last, path), lambda: columns, scope)
        yield
