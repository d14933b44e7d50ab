"""Versions of a text are alike at most positions: the first layer projects each kind of position once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from exegete.models.families import FAMILIES
from exegete.models.layers.architecture import get_layers, get_module

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel


@contextmanager
def share_first_projection(model: ExplainedModel, kinds: Tensor) -> Iterator[None]:
    """Inside the block queries, keys and values of the first layer are computed once for positions of one kind.

    In families whose record says what makes them; in others nothing happens.

    Args:
        model: it is run on as many rows, of as many positions.
        kinds: [m, L] numbers; where two are equal the embeddings are, with position and token type.
    """
    family = FAMILIES.get(model.config.model_type)
    different, kind = kinds.unique(return_inverse=True)
    if family is None or 2 * len(different) > kind.numel():
        yield
        return
    one = torch.empty_like(different).scatter_(0, kind.flatten(), torch.arange(kind.numel(), device=kind.device))

    def fewer(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0].flatten(0, 1)[one], *inputs[1:]) if inputs[0].shape[:-1] == kinds.shape else inputs

    def again(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output[kind] if len(output) == len(one) and output.ndim == 2 else output

    with ExitStack() as scope:
        for path in family.attention.projections:
            projection = get_module(get_layers(model.model)[0], path)
            scope.enter_context(projection.register_forward_pre_hook(fewer))
            scope.enter_context(projection.register_forward_hook(again))
        yield
