"""A family's parts, found in a model of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.families import FAMILIES, Family, Head


def get_architecture(model: PreTrainedModel) -> Family:
    """The family's record, with the head that the model has: for classes, tags, spans or masked words.

    Raises:
        ExegeteError: a family without a record.
    """
    family = model.config.model_type
    if family not in FAMILIES:
        raise ExegeteError(
            f"nothing is known of the layers of model type {family!r}. Known: {', '.join(sorted(FAMILIES))}. "
            "A record for it goes into exegete/models/families"
        )
    found = FAMILIES[family]
    flag = found.feed_forward.gate_flag
    if flag is not None and getattr(model.config, flag):
        after = found.decoder and replace(found.decoder, feed_forward=found.decoder.feed_forward.split_gate())
        found = replace(found, feed_forward=found.feed_forward.split_gate(), decoder=after)
    name, own = type(model).__name__, getattr(model, "own_head", None)
    if own is not None:
        return replace(found, head=own)
    if hasattr(model, "qa_outputs"):
        return replace(found, head=Head("qa_outputs"))
    if name.endswith("ForTokenClassification") and not found.head.norm:
        return replace(found, head=Head("classifier" if hasattr(model, "classifier") else "score"))
    if name.endswith("ForMultipleChoice") and hasattr(model.base_model, "pooler"):
        return replace(found, head=Head("classifier", dense="@.pooler.dense", activation="tanh"))
    if name.endswith("ForMaskedLM"):
        if found.masked is None:
            raise ExegeteError(f"nothing is known of the masked head of model type {family!r}: use gradients")
        return replace(found, head=found.masked)
    return found


def get_module(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path.

    Raises:
        ExegeteError: there is none: the record does not fit this model.
    """
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise ExegeteError(f"expected {type(root).__name__} to have the part {path!r}: {error}") from error


def encoder_decoder_error() -> ExegeteError:
    """Why a method that follows hidden states through layers does not explain an encoder with a decoder."""
    return ExegeteError(
        "hidden states are not followed through an encoder and a decoder: take a method of gradients, backward rules, "
        "attention or perturbation"
    )


def get_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """The layers in the order in which they run; a shared one comes as often as it runs.

    Of a family without a record: the one list of as many modules as the configuration has layers.
    """
    inner: Any = model
    base = (inner.get_base_model() if hasattr(inner, "get_base_model") else inner).base_model
    count = model.config.num_hidden_layers
    if model.config.model_type not in FAMILIES:
        lists = [each for each in base.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
        if len(lists) == 1:
            return tuple(lists[0])
    found = get_architecture(model)
    blocks = list(get_module(base, found.layers).children())
    if found.decoder is not None:
        return (*blocks, *get_module(base, found.decoder.layers).children())
    if found.shared is None:
        return tuple(blocks)
    groups = [blocks[int(index / (count / len(blocks)))] for index in range(count)]
    return tuple(layer for group in groups for layer in get_module(group, found.shared).children())


def get_first_layers(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """The first layer of an encoder, and that of its decoder."""
    after = get_architecture(model).decoder
    assert after is not None
    return get_layers(model)[0], next(get_module(model.base_model, after.layers).children())


def get_head_module(model: PreTrainedModel, path: str) -> nn.Module:
    """A part of the head; `@` stands for the base model."""
    return get_module(model.base_model, path[2:]) if path.startswith("@.") else get_module(model, path)
