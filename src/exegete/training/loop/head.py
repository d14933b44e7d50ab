"""Settings of the head alone: its learning rate, its dropout, its activation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.layers.activations import HEAD_KEY, set_head_activation
from exegete.models.layers.architecture import unwrap_adapter


def set_head_learning_rate(optimizer: torch.optim.Optimizer, model: PreTrainedModel, rate: float) -> None:
    """Move the head's weights to parameter groups of their own, with `rate` times the learning rate of their group.

    The head consists of all parameters outside the model's encoder (`base_model`).

    Raises:
        ExegeteError: a rate of 0 or less, or a model without a head.
    """
    # Call this before a schedule is made: schedulers take each group's initial rate when they are created.
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
    """Set the dropout outside the model's encoder to `share` inside the block; None keeps it."""
    encoder = {id(module) for module in unwrap_adapter(model).base_model.modules()}
    own = [each for each in model.modules() if isinstance(each, nn.Dropout) and id(each) not in encoder]
    previous = [module.p for module in own]
    try:
        for module in own:
            module.p = module.p if share is None else share
        yield
    finally:
        for module, dropout in zip(own, previous, strict=True):
            module.p = dropout


@contextmanager
def head_activation(model: PreTrainedModel, name: str | None) -> Iterator[None]:
    """Set the head's activation inside the block; a model that is saved there keeps it. None keeps the activation."""
    model = unwrap_adapter(model)
    previous = getattr(model.config, HEAD_KEY, None)
    if name is not None:
        set_head_activation(model, name)
    try:
        yield
    finally:
        if name is not None:
            set_head_activation(model, previous)
