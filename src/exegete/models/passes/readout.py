"""Leaving out what an answer does not depend on: the last layer at positions where nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from exegete.models.families import FAMILIES
from exegete.models.layers.architecture import layers, part

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel


@contextmanager
def answer_only(model: ExplainedModel) -> Iterator[None]:
    """Inside the block the last layer ends with the first position alone, if the head reads there.

    Logits stay what they are; hidden states of the last layer must not be asked for. In families with a known part
    `after_attention` this saves most of a layer; in others nothing happens.
    """
    family = FAMILIES.get(model.config.model_type)
    if family is None or family.after_attention is None or model.task.at_positions:
        yield
        return
    with part(layers(model.model)[-1], family.after_attention).register_forward_pre_hook(_first):
        yield


def _first(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value[:, :1] if isinstance(value, Tensor) else value for value in inputs)
