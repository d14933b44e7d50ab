"""The activation of a head, and its change in heads that share their encoder's (BigBird)."""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.layers import activations

ENCODER_KEY = "hidden_act"
"""The configuration's entry for the encoder's activation."""
HEAD_KEY = "head_activation"
"""The entry that is saved with a model whose head has an activation of its own."""


def set_head_activation(model: PreTrainedModel, name: str | None) -> None:
    """Set the head's activation and save its name in the configuration; None restores the encoder's activation.

    Raises:
        ExpoundError: an activation without a known slope, or a head that does not share its encoder's.
    """
    if not shares_encoder_activation(model):
        raise ExpoundError(f"{type(model).__name__} has a head whose activation is its own: leave head_activation out")
    vars(model.config).pop(HEAD_KEY, None)
    config = model.config
    if name is not None:
        activations.zero_origin_slope(name)
        # The head gets a configuration of its own: the encoder would change with a shared one.
        config = copy(config)
        setattr(config, ENCODER_KEY, name)
        setattr(model.config, HEAD_KEY, name)
    head: Any = model.classifier
    head.config = config


def shares_encoder_activation(model: PreTrainedModel) -> bool:
    """Return whether the head takes its activation from the encoder's entry of the configuration."""
    # Heads with a configuration of their own read the activation's name there in every pass.
    head = getattr(model, "classifier", None)
    return hasattr(getattr(head, "config", None), ENCODER_KEY)


def restore_head_activation(model: PreTrainedModel) -> PreTrainedModel:
    """Return a loaded model whose head has the activation that is saved in its configuration."""
    name = getattr(model.config, HEAD_KEY, None)
    if name is not None:
        set_head_activation(model, name)
    return model
