"""Leaving out what an answer does not depend on: the last layer at positions where nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from exegete.models.architecture import layers, part

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel

AFTER_ATTENTION = dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta", "deberta-v2"), "attention.output")


@contextmanager
def answer_only(model: ExplainedModel) -> Iterator[None]:
    """Inside the block the last layer ends with the first position alone, if the head reads there.

    Logits stay what they are; hidden states of the last layer must not be asked for. In the families of
    `AFTER_ATTENTION`, whose module of that name takes the attention's output and the residual, this saves most of a
    layer; in others nothing happens.
    """
    path = AFTER_ATTENTION.get(model.config.model_type)
    if path is None or model.task.name == "span":
        yield
        return
    with part(layers(model.model)[-1], path).register_forward_pre_hook(_first):
        yield


def _first(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value[:, :1] if isinstance(value, Tensor) else value for value in inputs)
