"""How low an explanation loss can get: training on it alone, and the bounds that follow."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

from datasets import Dataset

from exegete.errors import ExegeteError
from exegete.objectives.explanation import Score
from exegete.recipes.base import Recipe
from exegete.recipes.guidance import DEPARTURES, MAX_LENGTH, PAPER, arguments, explanation_loss
from exegete.training import TrainResult
from exegete.training.loop.starting_model import Source

SLACK = 1.5


class Bounds(NamedTuple):
    """Of an explanation loss: `train` for the multiplier, `dev` for the choice of the epoch."""

    train: float
    dev: float


def er_bound(
    guide: Annotated[
        str, "What is guided: rollout, attention, input_x_gradient, or any differentiable id."
    ] = "rollout",
    score: Annotated[Score, "Distance to rationales."] = "mae",
) -> Recipe:
    """Train on the explanation loss alone, to see how low it gets; er_constrained needs bounds made of this.

    The dev bound is the lowest dev loss, the training bound 1.5 times the lowest training loss; means over seeds.

    Example: exegete train er_bound --guide alti --model bert-base-uncased --data sst:data/sst --output-dir runs/bound
    """
    loss, _ = explanation_loss(guide, score, 1.0)
    return Recipe(
        name="er_bound",
        paper=PAPER,
        objectives=(loss,),
        arguments=arguments(3e-5, 25),
        patience=10 if loss.explainer.name == "input_x_gradient" else 5,
        max_length=MAX_LENGTH,
        departures=DEPARTURES,
    )


def find_bounds(
    model: Source,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    *,
    guide: str,
    score: Score = "mae",
    seeds: Sequence[int] = (0, 1, 2),
    **options: Any,
) -> Bounds:
    """Bounds for `er_constrained` on this model and data (§3.4 of the method): one run of `er_bound` a seed.

    Args:
        model: see `Recipe.train`, as `dev`.
        train: the data that the training bound is of.
        dev: the data that the dev bound is of.
        output_dir: holds a folder for each seed; finished runs are not repeated.
        guide: what is guided.
        score: distance to rationales.
        seeds: of the runs.
        options: see `Recipe.train`.

    Raises:
        ExegeteError: a run was stopped before its end.
    """
    recipe = er_bound(guide, score)
    results = [
        recipe.train(deepcopy(model), train, dev, Path(output_dir) / f"seed-{seed}", seed=seed, **options)
        for seed in seeds
    ]
    return bounds(results)


def bounds(results: Sequence[TrainResult]) -> Bounds:
    """Mean over runs of the lowest dev loss, and 1.5 times that of the lowest training loss of an epoch."""
    unfinished = next((result for result in results if not (result.finished or result.reused)), None)
    if unfinished is not None:
        raise ExegeteError(f"the run in {unfinished.folder} was stopped: finish it first")
    lowest = [
        [min(entry[key] for entry in result.history if key in entry) for result in results]
        for key in ("explanation", "eval_explanation")
    ]
    return Bounds(SLACK * mean(lowest[0]), mean(lowest[1]))
