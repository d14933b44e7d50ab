"""Access to the parts of a Hugging Face model."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.state import CACHE_ARGUMENTS


def unwrap_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model inside a PEFT wrapper, or the model itself."""
    if not hasattr(model, "get_base_model"):
        return model
    return model.get_base_model()


def has_head(model: PreTrainedModel, *heads: str) -> bool:
    """Return whether the model is of a class with one of these heads, inherits from one, or was saved as one."""
    inner = unwrap_adapter(model)
    names = [base.__name__ for base in type(inner).__mro__]
    # Code that is saved with a model says by which auto class it is loaded.
    for auto_class, path in (getattr(inner.config, "auto_map", None) or {}).items():
        if str(path).endswith(f".{type(inner).__name__}"):
            names.append(auto_class)
    return any(name.endswith(heads) for name in names)


def takes_argument(model: PreTrainedModel, name: str) -> bool:
    """Return whether the forward of the model's class, or of one that it inherits from, has this argument."""
    classes = [base for base in type(unwrap_adapter(model)).__mro__ if issubclass(base, nn.Module)]
    return any(name in inspect.signature(base.forward).parameters for base in classes)


def find_cache_argument(model: PreTrainedModel) -> str | None:
    """Return the name under which the model takes and returns its cache, or None if it takes none."""
    parameters = inspect.signature(unwrap_adapter(model).forward).parameters
    for name in CACHE_ARGUMENTS:
        if name in parameters:
            return name
    return None


def get_base_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without its head, also of a model in a PEFT wrapper."""
    base: PreTrainedModel = unwrap_adapter(model).base_model
    return base


def get_embedding(model: PreTrainedModel) -> nn.Module:
    """Return the layer of input embeddings.

    Raises:
        ExpoundError: the model has none.
    """
    layer: nn.Module | None = None
    # transformers raises this where it does not know the layer, and offers no other way to ask.
    with suppress(NotImplementedError):
        layer = model.get_input_embeddings()
    if not isinstance(layer, nn.Module):
        raise ExpoundError(f"{type(model).__name__} has no layer of input embeddings: it is not explained")
    return layer


def get_part_config(model: PreTrainedModel) -> Any:
    """Return the configuration of the part that reads the input: of models for images and texts, one of two.

    Raises:
        ExpoundError: it does not say how many layers and heads there are.
    """
    config: Any = model.config
    if not hasattr(config, "num_hidden_layers"):
        config = config.get_text_config()
        if model.main_input_name == "pixel_values":
            config = getattr(model.config, "vision_config", config)
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        raise ExpoundError(
            f"model type {model.config.model_type!r} has stages instead of layers of one kind: take a method of "
            "gradients or perturbation"
        )
    return config


def find_last_attention(model: PreTrainedModel) -> int:
    """Return the number of the attention call, counted from 1, with which the last layer begins."""
    # An encoder-decoder has two attentions per decoder layer and says itself where the last layer begins.
    return getattr(model, "last_attention", None) or int(get_part_config(model).num_hidden_layers)


def get_module(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a dotted path.

    Raises:
        ExpoundError: the module does not exist.
    """
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise ExpoundError(f"expected {type(root).__name__} to have the part {path!r}: {error}") from error


def get_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Return the layers in the order in which they run; a shared layer appears once per run.

    Each stack's are the list of modules with the most parameters; of an encoder-decoder, the decoder's come last.
    """
    base = get_base_model(model)
    if model.config.is_encoder_decoder:
        return tuple(layer for stack in _get_stacks(base) for layer in _find_largest_list(stack))
    if model.config.model_type != "albert":
        # Models that also read images have a part for each.
        return _find_largest_list(base if model.main_input_name == "pixel_values" else base.get_decoder())
    # ALBERT runs few groups of layers many times; this is its own assignment of runs to groups.
    blocks = list(get_module(base, "encoder.albert_layer_groups").children())
    count = get_part_config(model).num_hidden_layers
    layers: list[nn.Module] = []
    for index in range(count):
        group = blocks[int(index / (count / len(blocks)))]
        layers += get_module(group, "albert_layers").children()
    return tuple(layers)


def get_first_layers(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """Return the first layer of an encoder and the first layer of its decoder."""
    encoder, decoder = (_find_largest_list(stack)[0] for stack in _get_stacks(get_base_model(model)))
    return encoder, decoder


def _get_stacks(base: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    encoder, decoder = base.get_encoder(), base.get_decoder()
    return encoder, decoder


def _find_largest_list(part: nn.Module) -> tuple[nn.Module, ...]:
    lists: list[nn.Module] = []
    for module in part.modules():
        # A list of tables is none of layers.
        if isinstance(module, nn.ModuleList) and len(module) and list(module[0].children()):
            lists.append(module)
    if not lists:
        raise ExpoundError(f"{type(part).__name__} has no list of layers: use gradients or perturbation")
    largest = max(lists, key=lambda each: sum(weight.numel() for weight in each.parameters()))
    return tuple(largest.children())


def get_first_position(model: nn.Module) -> int:
    """Return the position id that the model gives to the first position of a text.

    RoBERTa reserves the positions up to its padding index, so its texts begin at the one after it; others begin at 0.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def encoder_decoder_error() -> ExpoundError:
    """Return the error of methods that follow hidden states through layers, for models with encoder and decoder."""
    return ExpoundError(
        "hidden states are not followed through an encoder and a decoder: take a method of gradients, backward rules, "
        "attention or perturbation"
    )
