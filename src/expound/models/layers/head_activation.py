"""The activation of a head, and its change in heads that share their encoder's (BigBird)."""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.families import FAMILIES
from expound.models.layers import activations
from expound.models.layers.architecture import get_architecture, get_module

ENCODER_KEY = "hidden_act"
"""The configuration's entry for the encoder's activation."""
HEAD_KEY = "head_activation"
"""The entry that is saved with a model whose head has an activation of its own."""


def get_head_activation(model: PreTrainedModel) -> str:
    """Return the name of the head's activation."""
    name = get_architecture(model).head.activation
    # A record holds the activation's name, or the configuration's entry with the name.
    config = _get_configured_module(model).config if shares_encoder_activation(model) else model.config
    return name if name in activations.SLOPES else str(getattr(config, name))


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
    _get_configured_module(model).config = config


def shares_encoder_activation(model: PreTrainedModel) -> bool:
    """Return whether the head takes its activation from the encoder's entry of the configuration."""
    family = FAMILIES.get(model.config.model_type)
    return family is not None and family.head.activation == ENCODER_KEY and hasattr(model, "classifier")


def restore_head_activation(model: PreTrainedModel) -> PreTrainedModel:
    """Return a loaded model whose head has the activation that is saved in its configuration."""
    name = getattr(model.config, HEAD_KEY, None)
    if name is not None:
        set_head_activation(model, name)
    return model


def _get_configured_module(model: PreTrainedModel) -> Any:
    """Return the module of the head whose configuration is read for the activation."""
    return get_module(model, str(FAMILIES[model.config.model_type].head.dense).rpartition(".")[0])
