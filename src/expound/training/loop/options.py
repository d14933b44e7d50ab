"""The options of a training run, and the arguments of transformers' Trainer that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from expound.errors import ExpoundError, check_choice, unknown

if TYPE_CHECKING:
    from transformers import TrainingArguments

# torch and transformers are imported inside the functions that need them: the command line and the study files read
# this module's constants and help texts, and must not wait seconds for those imports.

PYTHON_ONLY = ("arguments", "callbacks", "compute_metrics")
"""Options of a run that are not options of the command line."""
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "small": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256},
}
"""Sizes of models that are trained from scratch."""

DEFAULT_ARGUMENTS: Mapping[str, Any] = {
    "num_train_epochs": 3,
    "learning_rate": 5e-5,
    "per_device_train_batch_size": 32,
    # Below 1, `warmup_steps` is a share of all steps.
    "warmup_steps": 0.06,
    "train_sampling_strategy": "group_by_length",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    # Without it a resumed run would forget how long early stopping has already waited.
    "restore_callback_states_from_checkpoint": True,
    "logging_steps": 50,
    "report_to": "none",
    "disable_tqdm": False,
    # Pinning memory warns on machines without a GPU.
    "dataloader_pin_memory": False,
}
FROM_SCRATCH_ARGUMENTS: Mapping[str, Any] = {"learning_rate": 1e-3, "num_train_epochs": 10}
IRRELEVANT_ARGUMENTS = frozenset(
    {"output_dir", "logging_dir", "run_name", "disable_tqdm", "logging_steps", "report_to", "log_level", "use_cpu"}
    | {"dataloader_num_workers", "dataloader_pin_memory", "per_device_eval_batch_size", "save_total_limit", "seed"}
    | {"eval_on_start"}
)
"""Arguments of the Trainer that do not change the trained model; the seed is recorded apart."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one training run. None means: use the recipe's own value.

    `arguments`: values of transformers' `TrainingArguments`, by name; `callbacks` and `compute_metrics` are passed to
    the Trainer. The annotation of every other field is its help text in `expound train`, with its limits.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    # The command line evaluates the types of all fields, without transformers.
    callbacks: Sequence[Any] = ()
    compute_metrics: Callable[[Any], Mapping[str, float]] | None = None
    processing_class: Annotated[Any, "Folder of a tokenizer or image processor. Default: the model's own."] = None
    max_length: Annotated[int | None, "Maximum number of tokens per text in training.", {"min": 8}] = None
    masked_share: Annotated[
        float,
        "Share of training examples with randomly masked tokens, so that the model learns to read incomplete texts.",
        {"min": 0, "max": 1},
    ] = 0.0
    head_lr_multiplier: Annotated[
        float | None, "Learning rate of the head, as a multiple of the encoder's. Default: the recipe's, or 1."
    ] = None
    head_dropout: Annotated[
        float | None,
        "Dropout between encoder and output. Default: the recipe's, or the model's own.",
        {"min": 0, "max": 1},
    ] = None
    head_activation: Annotated[
        str | None,
        "Activation of the head, for models whose head shares the encoder's (BigBird). Default: the recipe's.",
    ] = None
    scalar_mix: Annotated[
        bool,
        "The head reads a learned mean of the hidden states of all layers and positions (as SMaT's teacher and student"
        " in the paper), and not those of one position in the last layer.",
    ] = False
    lora_rank: Annotated[
        int | None,
        "Train LoRA adapters of this rank, and the head, instead of all weights. Default: the recipe's, or 0.",
        {"min": 0},
    ] = None
    lora_alpha: Annotated[
        float | None,
        "The adapters' update is scaled by this number divided by the rank. Default: twice the rank.",
        {"min": 0},
    ] = None
    lora_dropout: Annotated[float, "Dropout before the adapters.", {"min": 0, "max": 1}] = 0.0
    lora_targets: Annotated[
        str | None, "Names of the layers with adapters, with commas. Default: all linear ones outside the head."
    ] = None
    early_stopping_patience: Annotated[
        int | None, "Stop after this many evaluations without improvement.", {"min": 1}
    ] = None
    early_stopping_threshold: Annotated[float | None, "Smallest change that counts as an improvement.", {"min": 0}] = (
        None
    )
    log_gradient_norms: Annotated[
        bool, "Log the gradient norm of each loss term (one more backward pass per term and step)."
    ] = False
    seed: Annotated[int, "Random seed."] = 0
    device: Annotated[str | None, "Device: cpu or cuda. Default: the GPU if available."] = None
    resume: Annotated[bool, "Resume an interrupted run in the output folder."] = True
    overwrite: Annotated[bool, "Replace another run in the output folder."] = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 32:
            raise ExpoundError(f"expected a seed from 0 to {(1 << 32) - 1}, got {self.seed}")
        if self.device not in (None, "cpu", "cuda"):
            raise ExpoundError(
                f"expected the device cpu or cuda, got {self.device!r}; CUDA_VISIBLE_DEVICES chooses among GPUs"
            )
        if self.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ExpoundError("no CUDA device is available here: use the device cpu")

    @classmethod
    def with_overrides(cls, options: RunOptions | None, overrides: Mapping[str, Any]) -> RunOptions:
        """Return the options with single ones replaced by name.

        Raises:
            ExpoundError: an override is not an option of a run.
        """
        valid = [each.name for each in fields(cls)]
        for name in overrides:
            check_choice("option of a run", name, valid)
        return replace(options or cls(), **overrides)

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """The Trainer's arguments by name, including `use_cpu` if a device was chosen."""
        if self.device is None:
            return dict(self.arguments)
        return {**self.arguments, "use_cpu": self.device == "cpu"}

    @property
    def lora_params(self) -> dict[str, Any]:
        """The parameters of `add_lora`; empty for a run without new adapters."""
        if not self.lora_rank:
            return {}
        targets = None if self.lora_targets is None else [part.strip() for part in self.lora_targets.split(",")]
        return {"rank": self.lora_rank, "alpha": self.lora_alpha, "dropout": self.lora_dropout, "targets": targets}

    def forbid_model_options(self, *, allows_lora: bool = False) -> None:
        """Raise ExpoundError for options that change the model, in a run that only explains it."""
        changes_head = (
            self.head_lr_multiplier not in (None, 1)
            or self.head_dropout is not None
            or self.head_activation is not None
        )
        if self.masked_share or changes_head or self.scalar_mix or (self.lora_rank and not allows_lora):
            raise ExpoundError(
                "the explained model stays as it is: masked_share, head_lr_multiplier, head_dropout, scalar_mix and "
                "the options of LoRA do not apply"
            )

    def fill_defaults(self, arguments: Mapping[str, Any], **defaults: Any) -> RunOptions:
        """Return the options with defaults where they are None; `arguments` yield to the options' own."""
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return replace(self, arguments={**arguments, **self.arguments}, **missing)


def names_new_model(source: str) -> bool:
    """Return whether a source means a model trained from scratch: a name of `SIZES`, or a configuration file."""
    return source in SIZES or source.endswith(".json")


def make_training_arguments(
    options: RunOptions, defaults: Mapping[str, Any], folder: Path, higher_is_better: Mapping[str, bool]
) -> TrainingArguments:
    """Return the Trainer's arguments: the options', on top of the defaults.

    Args:
        options: a run's options.
        defaults: arguments used unless the options override them.
        folder: the run's folder.
        higher_is_better: the direction of every figure by which the best model may be chosen.

    Raises:
        ExpoundError: an unknown argument or figure, or a value that the Trainer refuses.
    """
    from transformers import TrainingArguments

    chosen = {**defaults, **options.trainer_arguments}
    _check_trackers(chosen.get("report_to"))
    best = (chosen["metric_for_best_model"] or "loss").removeprefix("eval_")
    if best not in higher_is_better and options.compute_metrics is None:
        raise unknown("figure to choose the best model by", best, higher_is_better)
    strategy = "steps" if "eval_steps" in chosen else "epoch"
    implied = {
        "eval_strategy": strategy,
        "save_strategy": strategy,
        # The direction of the user's own figures is an argument, too.
        "greater_is_better": higher_is_better.get(best, True),
    }
    # Small training batches are mostly chosen for memory, and an evaluation that explains takes as much per example.
    implied["per_device_eval_batch_size"] = min(64, 4 * chosen["per_device_train_batch_size"])
    # The Trainer loads the best model from its checkpoint, so every evaluation needs one of its own.
    if "eval_steps" in chosen:
        implied["save_steps"] = chosen["eval_steps"]
    try:
        return TrainingArguments(**(implied | chosen | {"output_dir": str(folder), "seed": options.seed}))
    except (TypeError, ValueError) as error:
        if chosen.get("bf16") and "bf16" in str(error):
            raise ExpoundError("bf16 without a GPU needs the CPU to be chosen: --device cpu (device='cpu')") from error
        raise ExpoundError(f"unusable training arguments: {str(error).splitlines()[0]}") from error


def _check_trackers(report_to: Any) -> None:
    """Raise ExpoundError for an experiment tracker that is not installed."""
    from transformers.integrations import get_available_reporting_integrations

    known = ["none", "all", *get_available_reporting_integrations()]
    if isinstance(report_to, str):
        report_to = [report_to]
    for name in report_to or ():
        if name not in known:
            raise ExpoundError(
                f"report_to={name}: expected one of {', '.join(known)}; install another with pip to use it"
            )


def get_changed_arguments(args: TrainingArguments) -> dict[str, Any]:
    """Return the Trainer's arguments that differ from its defaults and may change the outcome, for a run's record."""
    defaults = {field.name: field.default for field in fields(args)}
    changed = {}
    for name, value in args.to_dict().items():
        if value != defaults.get(name) and name not in IRRELEVANT_ARGUMENTS:
            changed[name] = value
    return changed
