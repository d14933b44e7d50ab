"""Changes that training makes to the head alone: its learning rate, its dropout, its activation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.layers.architecture import unwrap_adapter
from exegete.models.layers.head_activation import HEAD_KEY, set_head_activation


def set_head_learning_rate(optimizer: torch.optim.Optimizer, model: PreTrainedModel, rate: float) -> None:
    """Moves the head's weights into parameter groups of their own, at `rate` times the learning rate of their group.

    The head is what does not belong to the model's encoder (`base_model`). Call it before the first step and before
    a schedule is made; checkpoints hold the groups, so that resumed runs go on with them.

    Raises:
        ExegeteError: a rate of 0 or less, or a model that is all encoder.
    """
    if rate <= 0:
        raise ExegeteError(f"the head's learning rate is a positive multiple of the encoder's, got {rate}")
    encoder = {id(weight) for weight in unwrap_adapter(model).base_model.parameters()}
    head = {id(weight) for weight in model.parameters()} - encoder
    if not head:
        raise ExegeteError(f"{type(model).__name__} has no head apart from its encoder")
    for group in list(optimizer.param_groups):
        own = [weight for weight in group["params"] if id(weight) in head]
        if own:
            group["params"] = [weight for weight in group["params"] if id(weight) not in head]
            optimizer.add_param_group(group | {"params": own, "lr": rate * group["lr"]})


@contextmanager
def head_dropout(model: PreTrainedModel, share: float | None) -> Iterator[None]:
    """Another dropout in all that does not belong to the model's encoder, inside the block; None changes nothing."""
    encoder = {id(module) for module in unwrap_adapter(model).base_model.modules()}
    own = [each for each in model.modules() if isinstance(each, nn.Dropout) and id(each) not in encoder]
    before = [module.p for module in own]
    try:
        for module, usual in zip(own, before, strict=True):
            module.p = usual if share is None else share
        yield
    finally:
        for module, usual in zip(own, before, strict=True):
            module.p = usual


@contextmanager
def head_activation(model: PreTrainedModel, name: str | None) -> Iterator[None]:
    """Another activation in the head inside the block, which what is saved there keeps; None changes nothing."""
    model = unwrap_adapter(model)
    before = getattr(model.config, HEAD_KEY, None)
    if name is not None:
        set_head_activation(model, name)
    try:
        yield
    finally:
        if name is not None:
            set_head_activation(model, before)
