"""Training small matrices beside a model's weights instead of the weights (Hu et al. 2022), with PEFT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel

KINDS = {"span": "QUESTION_ANS", "generation": "CAUSAL_LM"}


def add_lora(model: ExplainedModel, rank: int = 8, alpha: int = 16, dropout: float = 0.0) -> None:
    """Puts adapters on every linear layer; they and the head are all that is trained then.

    Args:
        model: changed in place; its own weights are held.
        rank: of each adapter.
        alpha: what adapters are scaled by, divided by the rank.
        dropout: on what goes into them.

    Raises:
        ExegeteError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ExegeteError("adapters need PEFT: install exegete[lora]") from error
    config = LoraConfig(
        task_type=KINDS.get(model.task.name, "SEQ_CLS"),
        target_modules="all-linear",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
    )
    model.model = get_peft_model(model.model, config)


@contextmanager
def temporary_adapters(model: nn.Module | None) -> Iterator[None]:
    """After the block a model has no adapters, and gradients for the weights that had them; None: no model."""
    trainable = [] if model is None else [weight for weight in model.parameters() if weight.requires_grad]
    try:
        yield
    finally:
        if model is not None:
            remove_lora(model)
        for weight in trainable:
            weight.requires_grad_(True)


def remove_lora(model: nn.Module) -> None:
    """Takes adapters out of a model again, and the copy of the head that learned beside them."""
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415
    from peft.utils import ModulesToSaveWrapper  # noqa: PLC0415

    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, BaseTunerLayer):
            model.set_submodule(name, module.get_base_layer())
        elif isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.original_module)
    del model.peft_config
