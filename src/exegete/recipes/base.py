"""The base of training recipes: objectives, a trainer, its arguments, and departures from the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.objectives import CrossEntropy, Objective
from exegete.training import ObjectiveTrainer, TrainResult, fine_tune
from exegete.training.loop.evaluation import HIGHER_IS_BETTER
from exegete.training.loop.fine_tune import FROM_SCRATCH
from exegete.training.loop.starting_model import Source, is_new, label_names


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training method of a paper, with the paper's values.

    `arguments`: of transformers' Trainer; `patience` and `threshold`: of early stopping; `max_length`: tokens a text
    may have (None: what the model takes); `head_rate`: the head's learning rate as a multiple of the encoder's, for a
    pretrained one; `departures`: what is done in another way than in the paper, a sentence each. Where the data has no
    classes, a figure of classes chooses nothing: the task's usual one does.
    """

    name: str
    paper: str
    objectives: tuple[Objective, ...] = (CrossEntropy(),)
    trainer: type[ObjectiveTrainer] = ObjectiveTrainer
    arguments: Mapping[str, Any] = field(default_factory=dict)
    patience: int | None = None
    threshold: float = 0.0
    max_length: int | None = None
    head_rate: float = 1.0
    needs_rationales: bool = False
    departures: tuple[str, ...] = ()

    def train(
        self,
        model: Source,
        train: Dataset,
        dev: Dataset,
        output_dir: str | Path,
        *,
        arguments: Mapping[str, Any] | None = None,
        early_stopping_patience: int | None = None,
        max_length: int | None = None,
        head_rate: float | None = None,
        **options: Any,
    ) -> TrainResult:
        """Trains a model into a folder; arguments as those of `fine_tune`, each on top of the recipe's own.

        A model from scratch gets that kind of model's learning rate and epochs unless told otherwise.

        Raises:
            ExegeteError: there is no rationale in the data of a method that needs some; else as `fine_tune`.
        """
        if self.needs_rationales:
            for name, data in (("train", train), ("dev", dev)):
                _require_rationales(name, data)
        new, own = FROM_SCRATCH if is_new(model) else {}, dict(self.arguments)
        if label_names(train) is None and own.get("metric_for_best_model") in HIGHER_IS_BETTER["classification"]:
            del own["metric_for_best_model"]
        return fine_tune(
            model,
            train,
            dev,
            output_dir,
            objectives=lambda start: self.terms(start, train, options.get("seed", 0)),
            trainer=self.trainer,
            arguments={**own, **new, **(arguments or {})},
            early_stopping_patience=early_stopping_patience or self.patience,
            early_stopping_threshold=self.threshold,
            max_length=max_length or self.max_length,
            head_rate=(1.0 if new else self.head_rate) if head_rate is None else head_rate,
            **options,
        )

    def terms(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """The terms of one run's loss, for the model that it starts from; nothing in them is shared with other runs."""
        return deepcopy(self.objectives)


Factory: TypeAlias = Callable[..., Recipe]


def _require_rationales(name: str, data: Dataset) -> None:
    columns = [column for column in ("rationale", "rationale_pair") if column in data.column_names]
    if not any(spans for column in columns for spans in data[column][:]):
        raise ExegeteError(
            f"no row of the {name} data has a rationale, so there is nothing to guide the model by: "
            "use data with rationales, or train baseline"
        )
