"""The arguments of transformers' Trainer: usual values, what is given on top of them, and what is on record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegete.errors import ExegeteError, unknown

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from exegete.training.loop.options import RunOptions

DEFAULTS: Mapping[str, Any] = {
    "num_train_epochs": 3,
    "learning_rate": 5e-5,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 0.06,
    "train_sampling_strategy": "group_by_length",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "restore_callback_states_from_checkpoint": True,
    "logging_steps": 50,
    "report_to": "none",
    "disable_tqdm": False,
    "dataloader_pin_memory": False,
}
FROM_SCRATCH: Mapping[str, Any] = {"learning_rate": 1e-3, "num_train_epochs": 10}
IRRELEVANT = frozenset(
    {"output_dir", "logging_dir", "run_name", "disable_tqdm", "logging_steps", "report_to", "log_level", "use_cpu"}
    | {"dataloader_num_workers", "dataloader_pin_memory", "per_device_eval_batch_size", "save_total_limit", "seed"}
    | {"eval_on_start"}
)


def training_arguments(
    options: RunOptions, usual: Mapping[str, Any], folder: Path, directions: Mapping[str, bool]
) -> TrainingArguments:
    """The Trainer's arguments: the options' on top of the usual ones.

    `directions`: of every figure that may choose the best model, whether higher is better.

    Raises:
        ExegeteError: an unknown argument or figure, or a value that the Trainer refuses.
    """
    from transformers import TrainingArguments

    chosen = {**usual, **options.named}
    _check_trackers(chosen.get("report_to"))
    often = "steps" if "eval_steps" in chosen else "epoch"
    higher = _higher_is_better(chosen["metric_for_best_model"], directions)
    defaults = {"eval_strategy": often, "save_strategy": often, "greater_is_better": higher}
    if "eval_steps" in chosen:
        defaults["save_steps"] = chosen["eval_steps"]
    try:
        return TrainingArguments(**(defaults | chosen | {"output_dir": str(folder), "seed": options.seed}))
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"unusable training arguments: {str(error).splitlines()[0]}") from error


def _check_trackers(report_to: Any) -> None:
    """Raises ExegeteError for a tracker that is not installed."""
    from transformers.integrations import get_available_reporting_integrations

    there = get_available_reporting_integrations()
    for name in [report_to] if isinstance(report_to, str) else report_to or ():
        if name not in ("none", "all", *there):
            known = ", ".join(["none", "all", *there])
            raise ExegeteError(f"report_to={name}: expected one of {known}; another is to be installed (pip install)")


def changed_arguments(args: TrainingArguments) -> dict[str, Any]:
    """The Trainer's arguments that are not its defaults and that the outcome may depend on."""
    usual = {field.name: field.default for field in fields(args)}
    chosen = {name: value for name, value in args.to_dict().items() if value != usual.get(name)}
    return {name: value for name, value in chosen.items() if name not in IRRELEVANT}


def _higher_is_better(best: str | None, directions: Mapping[str, bool]) -> bool:
    name = (best or "loss").removeprefix("eval_")
    if name not in directions:
        raise unknown("figure to choose the best model by", name, directions)
    return directions[name]
