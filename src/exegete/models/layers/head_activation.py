"""The activation of a head; of one that takes its encoder's from the configuration (BigBird's), another one."""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.families import FAMILIES
from exegete.models.layers import activations
from exegete.models.layers.architecture import get_architecture, get_module

ENCODER_KEY = "hidden_act"  # the configuration's entry for the encoder
HEAD_KEY = "head_activation"  # the entry that is saved with a model whose head has another one


def get_head_activation(model: PreTrainedModel) -> str:
    """The name of the head's activation: the family's record gives it, or says where the configuration has it."""
    name = get_architecture(model).head.activation
    config = _head(model).config if shares_encoder_activation(model) else model.config
    return name if name in activations.SLOPES else str(getattr(config, name))


def set_head_activation(model: PreTrainedModel, name: str | None) -> None:
    """Gives the head an activation of its own, which the configuration notes; None: the encoder's again.

    Raises:
        ExegeteError: an activation without a known slope, or a head that does not share its encoder's.
    """
    if not shares_encoder_activation(model):
        raise ExegeteError(f"{type(model).__name__} has a head whose activation is its own: leave head_activation out")
    vars(model.config).pop(HEAD_KEY, None)
    config = model.config
    if name is not None:
        activations.get_slope(name)
        config = copy(config)
        setattr(config, ENCODER_KEY, name)
        setattr(model.config, HEAD_KEY, name)
    _head(model).config = config


def shares_encoder_activation(model: PreTrainedModel) -> bool:
    """Whether the head takes its activation from the encoder's entry of the configuration."""
    family = FAMILIES.get(model.config.model_type)
    return family is not None and family.head.activation == ENCODER_KEY and hasattr(model, "classifier")


def restore_head_activation(model: PreTrainedModel) -> PreTrainedModel:
    """The model, its head with the activation that its configuration notes."""
    name = getattr(model.config, HEAD_KEY, None)
    if name is not None:
        set_head_activation(model, name)
    return model


def _head(model: PreTrainedModel) -> Any:
    """The module whose configuration names the head's activation."""
    return get_module(model, str(FAMILIES[model.config.model_type].head.dense).rpartition(".")[0])
