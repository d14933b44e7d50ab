"""The base of training recipes: objectives, a trainer, its arguments, and departures from the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer

from expound.data.provenance import add_to_record
from expound.errors import ExpoundError
from expound.models import ExplainedModel, load
from expound.objectives import CrossEntropy, Objective
from expound.training import RunOptions, TrainingModule, TrainResult, fine_tune
from expound.training.loop.data import is_generation_data
from expound.training.loop.evaluation import HIGHER_IS_BETTER
from expound.training.loop.options import FROM_SCRATCH_ARGUMENTS
from expound.training.loop.starting_model import Source, is_from_scratch, label_names


class Effect(NamedTuple):
    """What a recipe exists for: a metric of an explainer, which `expound train --control` compares.

    `explainer`: the spec, in which {run} is the folder of the run. `control`: the control's spec, None for the same.
    """

    metric: str
    explainer: str
    control: str | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe: how a paper trains a model.

    Attributes:
        name: the id in the registry.
        paper: authors and year.
        objectives: the terms of the loss.
        module: how the loss and the figures of evaluations are computed.
        arguments: arguments of transformers' Trainer, for short runs on small data.
        paper_arguments: the paper's arguments, which `--preset paper` uses instead; None: `arguments` are the paper's.
        from_scratch: arguments for a model from scratch, which override `arguments`.
        patience: evaluations without improvement before early stopping; None: no early stopping.
        threshold: how much counts as an improvement.
        max_length: the largest number of tokens of a text; None: what the model takes.
        head_lr_multiplier: the learning rate of the head of a pretrained model, as a multiple of the encoder's.
        head_dropout: dropout before the output layer; None: the model's own.
        head_activation: the activation of a head that otherwise has its encoder's.
        lora_rank: the rank of LoRA adapters; 0: all weights are trained.
        trains_language_models: whether data with prompts and responses can be trained on.
        effect: what the recipe exists for; None: it has no control run.
        departures: one sentence for each difference from the paper.
        uses_trainer_defaults: whether the defaults of the training loop apply to arguments that the recipe leaves open.
        keeps_model: whether the model is only explained, and stays as it is.
    """

    name: str
    paper: str
    objectives: tuple[Objective, ...] = (CrossEntropy(),)
    module: type[TrainingModule] = TrainingModule
    arguments: Mapping[str, Any] = field(default_factory=dict)
    paper_arguments: Mapping[str, Any] | None = None
    from_scratch: Mapping[str, Any] = field(default_factory=lambda: FROM_SCRATCH_ARGUMENTS)
    patience: int | None = None
    threshold: float = 0.0
    max_length: int | None = None
    head_lr_multiplier: float = 1.0
    head_dropout: float | None = None
    head_activation: str | None = None
    lora_rank: int = 0
    trains_language_models: bool = False
    effect: Effect | None = None
    departures: tuple[str, ...] = ()
    uses_trainer_defaults: ClassVar[bool] = True
    keeps_model: ClassVar[bool] = False

    def train(
        self,
        model: Source,
        train: Dataset,
        dev: Dataset,
        output_dir: str | Path,
        options: RunOptions | None = None,
        **params: Any,
    ) -> TrainResult:
        """Train a model and save it in a folder, see `fine_tune`. `expound.train` is the shorter way.

        The folder's record names the recipe, its paper and its departures. A model from scratch has its own default
        learning rate and number of epochs.

        Args:
            model: see `starting_model`.
            train: the data to train on, with the columns of `expound.load_data`.
            dev: the data to choose the best checkpoint on.
            output_dir: the folder.
            options: options of the run; they override the recipe's values.
            params: single options of the run by name, on top of `options`.

        Raises:
            ExpoundError: data without rationales for a recipe that needs them, data with responses for a recipe that
                cannot train on them; else as `fine_tune`.
        """
        if is_generation_data(train) and not self.trains_language_models:
            raise ExpoundError(f"{self.name} trains no language model: give data with labels, or train baseline")
        if any(objective.needs_rationale for objective in self.objectives):
            for name, data in (("train", train), ("dev", dev)):
                _require_rationales(name, data)
        result = self.run(model, train, dev, Path(output_dir), RunOptions.with_overrides(options, params))
        # with several processes, one writes
        if PartialState().is_main_process:
            add_to_record(
                result.output_dir, {"recipe": self.name, "paper": self.paper, "departures": list(self.departures)}
            )
        return result

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the model with options as the user gave them; overridden by recipes that do more than fine-tuning."""
        return fine_tune(
            model,
            train,
            dev,
            folder,
            objectives=lambda start: self.build_objectives(start, train, options.seed),
            module=self.module,
            options=self.resolve_options(options, model, train),
        )

    def make_control(self) -> Recipe:
        """Return the recipe that trains the same steps on the cross-entropy alone."""
        arguments = dict(self.arguments)
        # Figures of the recipe's own terms do not exist without them.
        if arguments.get("metric_for_best_model", "loss") not in {"loss", *HIGHER_IS_BETTER["classification"]}:
            arguments["metric_for_best_model"] = CrossEntropy.name
        own = {each.name: getattr(self, each.name) for each in fields(Recipe)}
        changed = {"name": f"{self.name}-control", "objectives": (CrossEntropy(),), "arguments": arguments}
        return Recipe(**own | changed)

    def resolve_options(self, options: RunOptions, model: Source, train: Dataset) -> RunOptions:
        """Return the options, with the recipe's values for options that the user left open."""
        new, own = self.from_scratch if is_from_scratch(model) else {}, dict(self.arguments)
        # without classes, a metric such as macro F1 does not exist: the task's default metric chooses the checkpoint
        if label_names(train) is None and own.get("metric_for_best_model") in HIGHER_IS_BETTER["classification"]:
            del own["metric_for_best_model"]
        # early stopping needs evaluations
        patience = None if options.arguments.get("eval_strategy") == "no" else self.patience
        return options.fill_defaults(
            {**own, **new},
            early_stopping_patience=patience,
            early_stopping_threshold=self.threshold,
            max_length=self.max_length,
            # a model from scratch has no pretrained encoder that would need a lower rate than the head
            head_lr_multiplier=1.0 if new else self.head_lr_multiplier,
            head_dropout=self.head_dropout,
            head_activation=self.head_activation,
            lora_rank=self.lora_rank,
        )

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Return the terms of one run's loss, for the model that the run starts from."""
        # a copy: objectives hold explainers with parameters and memories, which runs must not share
        return deepcopy(self.objectives)


RecipeFactory: TypeAlias = Callable[..., Recipe]
"""A function from parameters to a recipe; the registry contains these."""


def _require_rationales(name: str, data: Dataset) -> None:
    for column in ("rationale", "rationale_pair"):
        if column in data.column_names and any(data[column][:]):
            return
    raise ExpoundError(
        f"no row of the {name} data has a rationale, so there is nothing to guide the model by: "
        "use data with rationales, or train baseline"
    )


def load_explained_model(
    name: str,
    model: Source | ExplainedModel,
    options: RunOptions,
    task: str | None = None,
    prompt: Mapping[str, Any] | None = None,
) -> ExplainedModel:
    """Return the model that a recipe explains, on the device of the run.

    Args:
        name: the recipe's id, for error messages.
        model: the fine-tuned model.
        options: options of the run; only the tokenizer, `max_length` and the device apply.
        task: see `expound.load`.
        prompt: the options of `expound.load` that make a causal language model a classifier, if it is prompted.

    Raises:
        ExpoundError: a model from scratch, or a tokenizer or task for a model that has its own.
    """
    tokenizer, max_length = options.processing_class, options.max_length
    if isinstance(model, ExplainedModel):
        if tokenizer not in (None, model.processing_class):
            raise ExpoundError("the explained model has its tokenizer already: processing_class does not apply")
        if task not in (None, model.task.name):
            raise ExpoundError(f"the explained model's task is {model.task.name} already: leave out task {task}")
        if max_length is None:
            return model
        return model.with_max_length(max_length)
    if is_from_scratch(model):
        raise ExpoundError(f"{name} explains a model that is fine-tuned already: give its folder as the model")
    if isinstance(tokenizer, str | Path):
        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer))
    settings: dict[str, Any] = {"task": task, "max_length": max_length, **(prompt or {})}
    if not isinstance(model, str | Path):
        return load(model, tokenizer, **settings)
    device = "cuda"
    if options.trainer_arguments.get("use_cpu") or not torch.cuda.is_available():
        device = "cpu"
    return load(model, tokenizer, device, **settings)
