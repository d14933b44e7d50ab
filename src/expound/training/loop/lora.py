"""Low-rank adapters (LoRA, Hu et al. 2022), with PEFT."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from expound.errors import ExpoundError
from expound.models import ExplainedModel

PEFT_TASKS = {"span": "QUESTION_ANS", "generation": "CAUSAL_LM"}


def add_lora(model: ExplainedModel, rank: int = 8) -> None:
    """Add an adapter to every linear layer, so that only the adapters and the head are trained.

    Args:
        model: changed in place; its own weights are frozen.
        rank: rank of each adapter.

    Raises:
        ExpoundError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ExpoundError("adapters need PEFT: install expound[lora]") from error
    config = LoraConfig(
        task_type=PEFT_TASKS.get(model.task.name, "SEQ_CLS"),
        target_modules="all-linear",
        # DistilBERT's is part of the head by its name, which PEFT trains whole.
        exclude_modules=["pre_classifier"],
        r=rank,
        # The scale of the update, alpha / rank, is 2 at every rank.
        lora_alpha=2 * rank,
    )
    model.model = get_peft_model(model.model, config)
    base = model.model.peft_config["default"].base_model_name_or_path
    # The adapter's folder names the base model, and is loaded from other working directories, too.
    if base and Path(base).is_dir():
        model.model.peft_config["default"].base_model_name_or_path = str(Path(base).resolve())


@contextmanager
def copied_modules(model: Any) -> Iterator[Any]:
    """Yield a copy of a handed-over model that has the same weights, so that adapters are added to the copy alone.

    Anything but a module, such as a folder, is yielded as it is. Weights that were trainable before are so again.
    """
    if not isinstance(model, nn.Module):
        yield model
        return
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    with _restore_trainable(model):
        # what deepcopy finds in its memo it does not copy
        yield copy.deepcopy(model, shared)


@contextmanager
def temporary_adapters(model: nn.Module | None) -> Iterator[None]:
    """Remove a model's adapters after the block; weights that were trainable before it are so again.

    For runs that merge their adapters into the given model when they finish; others use `copied_modules`.
    """
    # With None there is no handed-over model to restore.
    if model is None:
        yield
        return
    with _restore_trainable(model):
        try:
            yield
        finally:
            remove_lora(model)


@contextmanager
def _restore_trainable(model: nn.Module) -> Iterator[None]:
    """Make weights that are trainable before the block trainable again after it."""
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        yield
    finally:
        for weight in trainable:
            weight.requires_grad_(True)


def remove_lora(model: nn.Module) -> None:
    """Remove the adapters from a model, and PEFT's trainable copy of the head."""
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415
    from peft.utils import ModulesToSaveWrapper  # noqa: PLC0415

    # From the innermost module to the outermost, since an adapter may lie inside a copied head.
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, BaseTunerLayer):
            model.set_submodule(name, module.get_base_layer())
        elif isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.original_module)
    del model.peft_config
