"""Sharing of the first layer's projections between versions of a text that are equal at most positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from expound.models.families import FAMILIES
from expound.models.hugging_face import HuggingFaceModel
from expound.models.layers.architecture import get_layers, get_module


@contextmanager
def share_first_projection(model: HuggingFaceModel, groups: Tensor) -> Iterator[None]:
    """Compute the first layer's queries, keys and values inside the block once per group of equal positions.

    This has an effect only in families whose record names the projections, and if it halves the work at least.

    Args:
        model: it is run on m rows of L positions inside the block.
        groups: [m, L] numbers; positions of one number have the same embedding, position and token type.
    """
    family = FAMILIES.get(model.config.model_type)
    distinct, group = groups.unique(return_inverse=True)
    if family is None or 2 * len(distinct) > group.numel():
        yield
        return
    # One position of each group. It is undefined which one scatter_ keeps, but all have the same projections.
    sample = torch.empty_like(distinct).scatter_(0, group.flatten(), torch.arange(group.numel(), device=group.device))

    def select_samples(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if inputs[0].shape[:-1] != groups.shape:
            return None
        return (inputs[0].flatten(0, 1)[sample], *inputs[1:])

    def expand_samples(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        is_reduced = len(output) == len(sample) and output.ndim == 2
        return output[group] if is_reduced else output

    with ExitStack() as scope:
        for path in family.attention.projections:
            projection = get_module(get_layers(model.model)[0], path)
            scope.enter_context(projection.register_forward_pre_hook(select_samples))
            scope.enter_context(projection.register_forward_hook(expand_samples))
        yield
