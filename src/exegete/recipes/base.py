"""The base of training recipes: objectives, a trainer, its arguments, and departures from the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from accelerate import PartialState
from datasets import Dataset

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.objectives import CrossEntropy, Objective
from exegete.training import ObjectiveTrainer, RunOptions, TrainResult, fine_tune
from exegete.training.loop.data import is_generation_data
from exegete.training.loop.evaluation import HIGHER_IS_BETTER
from exegete.training.loop.options import FROM_SCRATCH_ARGUMENTS
from exegete.training.loop.run import add_to_record
from exegete.training.loop.starting_model import Source, is_from_scratch, label_names


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training method of a paper, with the paper's values.

    `arguments`: of transformers' Trainer; `from_scratch`: those of a model from scratch, on top; `patience` and
    `threshold`: of early stopping; `max_length`: tokens a text may have (None: what the model takes); `head_rate`: the
    head's learning rate as a multiple of the encoder's, for a pretrained one; `head_dropout`: before the output (None:
    the model's own); `head_activation`: of a head that would have its encoder's; `departures`: what is done in another
    way than in the paper, a sentence each; `trains_language_models`: whether it also trains what language models say;
    `uses_trainer_defaults`: whether the Trainer's own defaults count.
    Where the data has no classes, a figure of classes chooses nothing: the task's usual one does.
    """

    name: str
    paper: str
    objectives: tuple[Objective, ...] = (CrossEntropy(),)
    trainer: type[ObjectiveTrainer] = ObjectiveTrainer
    arguments: Mapping[str, Any] = field(default_factory=dict)
    from_scratch: Mapping[str, Any] = field(default_factory=lambda: FROM_SCRATCH_ARGUMENTS)
    patience: int | None = None
    threshold: float = 0.0
    max_length: int | None = None
    head_rate: float = 1.0
    head_dropout: float | None = None
    head_activation: str | None = None
    trains_language_models: bool = False
    departures: tuple[str, ...] = ()
    uses_trainer_defaults: ClassVar[bool] = True

    def train(
        self,
        model: Source,
        train: Dataset,
        dev: Dataset,
        output_dir: str | Path,
        options: RunOptions | None = None,
        **given: Any,
    ) -> TrainResult:
        """Trains a model into a folder, see `fine_tune`; options, and single ones by name, on top of the recipe's own.

        The folder's record names the recipe, its paper and its departures from it.
        A model from scratch gets that kind of model's learning rate and epochs unless told otherwise.

        Raises:
            ExegeteError: there is no rationale in the data of a method that needs some, or there are responses where
                none are trained; else as `fine_tune`.
        """
        if is_generation_data(train) and not self.trains_language_models:
            raise ExegeteError(f"{self.name} trains no language model: give data with labels, or train baseline")
        if any(objective.needs_rationale for objective in self.objectives):
            for name, data in (("train", train), ("dev", dev)):
                _require_rationales(name, data)
        result = self.run(model, train, dev, Path(output_dir), RunOptions.with_overrides(options, given))
        if PartialState().is_main_process:
            add_to_record(
                result.folder, {"recipe": self.name, "paper": self.paper, "departures": list(self.departures)}
            )
        return result

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """The run itself, for recipes that do more, or another thing, to override; options as they were given."""
        return fine_tune(
            model,
            train,
            dev,
            folder,
            objectives=lambda start: self.build_objectives(start, train, options.seed),
            trainer=self.trainer,
            options=self.resolve_options(options, model, train),
        )

    def resolve_options(self, options: RunOptions, model: Source, train: Dataset) -> RunOptions:
        """The options with the recipe's own values where nothing else was asked for."""
        new, own = self.from_scratch if is_from_scratch(model) else {}, dict(self.arguments)
        if label_names(train) is None and own.get("metric_for_best_model") in HIGHER_IS_BETTER["classification"]:
            del own["metric_for_best_model"]
        return options.fill_defaults(
            {**own, **new},
            early_stopping_patience=None if options.arguments.get("eval_strategy") == "no" else self.patience,
            early_stopping_threshold=self.threshold,
            max_length=self.max_length,
            head_rate=1.0 if new else self.head_rate,
            head_dropout=self.head_dropout,
            head_activation=self.head_activation,
        )

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """The terms of one run's loss, for the model that it starts from; nothing in them is shared with other runs."""
        return deepcopy(self.objectives)


RecipeFactory: TypeAlias = Callable[..., Recipe]
"""Makes a recipe of its parameters; registries hold these."""


def _require_rationales(name: str, data: Dataset) -> None:
    columns = [column for column in ("rationale", "rationale_pair") if column in data.column_names]
    if not any(spans for column in columns for spans in data[column][:]):
        raise ExegeteError(
            f"no row of the {name} data has a rationale, so there is nothing to guide the model by: "
            "use data with rationales, or train baseline"
        )
