"""Capture for the families whose attention does not go through transformers' attention interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.families import Hooks

if TYPE_CHECKING:
    from exegete.models.passes.capture import AttentionRecord


@contextmanager
def record_by_hooks(model: PreTrainedModel, names: Hooks, record: AttentionRecord) -> Iterator[None]:
    """Record by hooks on the query, key and value layers and on the attention dropout; none is left after the block."""
    layers = [module for module in model.modules() if all(hasattr(module, name) for name in (names.query, names.key))]
    wanted = record.capture.attentions or record.capture.heads or record.zeroed is not None
    if wanted and any(not hasattr(layer, names.dropout) for layer in layers):
        raise ExegeteError(
            "BigBird's block-sparse attention has no attention matrix to capture or to take values out of; "
            "load the model with attention_type='original_full' or use shorter texts"
        )
    with ExitStack() as scope:
        for layer in layers:
            _hook(layer, names, record, scope)
        yield


def _hook(layer: nn.Module, names: Hooks, record: AttentionRecord, scope: ExitStack) -> None:
    heads = int(getattr(layer, names.heads))
    if record.zeroed is not None:
        gone = record.zeroed[..., None]
        value = layer.get_submodule(names.value)
        scope.enter_context(value.register_forward_hook(lambda module, inputs, output: output.masked_fill(gone, 0)))
    if record.capture.attentions:
        dropout = layer.get_submodule(names.dropout)
        scope.enter_context(dropout.register_forward_pre_hook(lambda _, inputs: record.attentions.append(inputs[0])))
    if record.capture.heads:
        record.scalings.append(_scaling(layer, names.query, heads))
        for name, store in zip(
            (names.query, names.key, names.value), (record.queries, record.keys, record.values), strict=True
        ):
            keep = _keep_first(store, heads)
            scope.enter_context(layer.get_submodule(name).register_forward_hook(keep))


def _scaling(layer: nn.Module, query: str, heads: int) -> float:
    """The factor of q·k; DeBERTa shares the variance out among it and the terms of relative positions."""
    width = int(layer.get_submodule(query).get_parameter("weight").shape[0]) // heads
    terms = 1 + len({"c2p", "p2c"} & set(getattr(layer, "pos_att_type", ())))
    return float((width * terms) ** -0.5)


def _keep_first(store: list[Tensor], heads: int) -> Callable[[nn.Module, Any, Tensor], None]:
    """A hook that stores a projection's first output only: DeBERTa projects its relative positions through it too."""
    seen: list[bool] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if not seen:
            seen.append(True)
            store.append(output.unflatten(-1, (heads, -1)).transpose(1, 2))

    return keep
