"""Low-rank adapters (LoRA, Hu et al. 2022), with PEFT."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from expound.errors import ExpoundError
from expound.models import ExplainedModel
from expound.models.layers.layer_parts import read_weight
from expound.training.loop.options import RunOptions

logger = logging.getLogger(__name__)
PEFT_TASKS = {"span": None, "generation": "CAUSAL_LM"}
"""PEFT's model of each task, by default that of classifiers; its model of question answering drops segments."""


def choose_weights(model: ExplainedModel, options: RunOptions) -> None:
    """Add the adapters that a run's options ask for, or continue the model's; else all weights are trained.

    Raises:
        ExpoundError: quantized weights without adapters, or PEFT is not installed.
    """
    if hasattr(model.model, "peft_config"):
        name = str(model.model.active_adapter)
        model.model.base_model.set_adapter(name)
        rank = getattr(model.model.peft_config[name], "r", None)
        logger.warning("training continues the adapter %r (rank %s) of the model, whose other weights stay", name, rank)
        if options.lora_rank not in (None, 0, rank):
            logger.warning(
                "no adapter of rank %d is added: for that, save the model with its adapter merged "
                "(model.merge_and_unload()) and start from it", options.lora_rank,
            )  # fmt: skip
    elif options.lora_rank:
        add_lora(model, **options.lora_params)
    elif getattr(model.model, "is_quantized", False):
        raise ExpoundError("weights of 4 or 8 bits are not trained themselves: add adapters by lora_rank (--lora-rank)")


def add_lora(model: ExplainedModel, rank: int = 8, **params: Any) -> None:
    """Add an adapter to linear layers, so that only the adapters and the head are trained.

    Args:
        model: changed in place; its own weights are frozen.
        rank: rank of each adapter.
        params: see `make_config`.

    Raises:
        ExpoundError: PEFT is not installed, or the model has no such layer.
    """
    head = [name for name, part in model.model.named_children() if part is not model.model.base_model]
    for name, part in list(model.model.named_modules()):
        weight = getattr(part, "weight", None)
        if name.partition(".")[0] in head and weight is not None and not weight.is_floating_point():
            model.model.set_submodule(name, _dequantize(part))
    others: dict[str, Any] = {"task_type": PEFT_TASKS.get(model.task.name, "SEQ_CLS")}
    if model.task.reads_context:
        # The heads of classifiers are known to PEFT by their names.
        others["modules_to_save"] = [name for name in head if list(model.model.get_submodule(name).parameters())]
    adapt(model, make_config(rank, **params, **others))


def _dequantize(layer: Any) -> nn.Linear:
    """Return a linear layer whose weights have 4 or 8 bits in floating point, to be trained."""
    linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device=layer.weight.device)
    linear.weight = nn.Parameter(read_weight(layer, "weight"))
    if layer.bias is not None:
        linear.bias = nn.Parameter(layer.bias.detach().float())
    return linear


def make_config(
    rank: int, alpha: float | None = None, dropout: float = 0.0, targets: list[str] | None = None, **others: Any
) -> Any:
    """Return PEFT's configuration of adapters.

    Args:
        rank: rank of each adapter.
        alpha: the update is scaled by alpha / rank. Default: twice the rank.
        dropout: dropout before each adapter.
        targets: names of the layers. Default: every linear layer outside the head.
        others: further settings of PEFT.

    Raises:
        ExpoundError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ExpoundError("adapters need PEFT: install expound[lora]") from error
    return LoraConfig(
        target_modules="all-linear" if targets is None else targets,
        # Parts of heads, which PEFT trains whole: DistilBERT's first layer, and that of question answering.
        exclude_modules=["pre_classifier", *others.get("modules_to_save", ())],
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        **others,
    )


def adapt(model: ExplainedModel, config: Any) -> None:
    """Add the adapters of a configuration to a model, which is changed in place."""
    from peft import get_peft_model  # noqa: PLC0415

    try:
        model.model = get_peft_model(model.model, config)
    except ValueError as error:
        raise ExpoundError(f"no adapters can be added: {str(error).splitlines()[0]}") from error
    base = model.model.peft_config["default"].base_model_name_or_path
    # The adapter's folder names the base model, and is loaded from other working directories, too.
    if not base:
        logger.warning("the model has no folder or name: the adapter's folder will not say which model to load it into")
    elif Path(base).is_dir():
        model.model.peft_config["default"].base_model_name_or_path = str(Path(base).resolve())


def adapt_like(student: ExplainedModel, model: ExplainedModel) -> None:
    """Add the adapters that a model has to its student, anew, if it has adapters."""
    if hasattr(model.model, "peft_config"):
        config = copy.deepcopy(model.model.peft_config[str(model.model.active_adapter)])
        config.base_model_name_or_path, config.inference_mode = None, False
        adapt(student, config)


def inject_lora(model: nn.Module, **params: Any) -> None:
    """Add adapters inside a module, without PEFT's model around it; `params`: see `make_config`."""
    config = make_config(**params)
    from peft import inject_adapter_in_model  # noqa: PLC0415

    inject_adapter_in_model(config, model)


def merge_lora(model: nn.Module) -> bool:
    """Merge the adapters inside a module into its layers, and return whether there were any."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415

    adapted = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    for name, module in adapted:
        module.merge()
        model.set_submodule(name, module.get_base_layer())
    return bool(adapted)


@torch.no_grad()
def share_frozen_weights(student: nn.Module, model: nn.Module, *, fixed: bool = False) -> None:
    """Let a student's frozen weights that equal a model's use the model's memory.

    `fixed`: whether all weights of the model stay as they are while the student trains; else the trainable ones change.
    """
    known = {}
    for name, weight in model.named_parameters():
        if fixed or not weight.requires_grad:
            known[_name_in_base(name)] = weight
    for name, weight in student.named_parameters():
        other = known.get(_name_in_base(name))
        if other is None or weight.requires_grad or weight.device != other.device:
            continue
        if torch.equal(weight, other):
            weight.data = other.data


def _name_in_base(name: str) -> str:
    """Return the name that a weight has without adapters around its layer."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".original_module.", ".")


@contextmanager
def keep_model(model: Any, *, copies: bool) -> Iterator[Any]:
    """Yield the model that a run starts from; weights of a handed-over one that were trainable are so again afterwards.

    With `copies` a copy of a handed-over model is yielded that has the same weights, so that adapters are added to the
    copy alone. Anything but a module, such as a folder, is yielded as it is.
    """
    if not isinstance(model, nn.Module):
        yield model
        return
    trainable = {weight: weight.requires_grad for weight in model.parameters()}
    try:
        if copies:
            shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
            # what deepcopy finds in its memo it does not copy
            model = copy.deepcopy(model, shared)
        yield model
    finally:
        for weight, requires_grad in trainable.items():
            weight.requires_grad_(requires_grad)
