"""Searches with Optuna: trials that resume after a kill, and a run for each value of a recipe's parameters."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import TrainingArguments

from expound.data.atomic_files import LOCK, process_start_time
from expound.data.provenance import OTHER_FOLDER, RECORD, add_to_record
from expound.errors import ExpoundError, unknown
from expound.explainers import explainer
from expound.metrics import metric
from expound.models.encoding.encode import make_batches
from expound.recipes.base import Effect, Recipe
from expound.training import RunOptions, TrainResult
from expound.training.loop.data import sample_evenly
from expound.training.loop.evaluation import HIGHER_IS_BETTER
from expound.training.loop.options import PYTHON_ONLY
from expound.training.loop.run import METRICS, TrainingRun
from expound.training.loop.starting_model import Source

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

SEARCH = "search"
"""The subfolder with a run for each value, and the part of the chosen run's record with their figures."""
FIGURE = "search_figure"
JUDGED_ROWS = 200
FLOOR = 0.01
FINISHED, PROCESS = ("COMPLETE", "PRUNED"), "process"


def open_study(url: str, name: str, *, higher_is_better: bool) -> Study:
    """Open the study of a name in an Optuna storage, or create it.

    Raises:
        ExpoundError: the storage cannot be opened.
    """
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction, pruner = "maximize" if higher_is_better else "minimize", optuna.pruners.MedianPruner()
    try:
        return optuna.create_study(
            storage=url, study_name=name, direction=direction, pruner=pruner, load_if_exists=True
        )
    # Optuna passes on the errors of every kind of database.
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExpoundError(f"the search's storage {url!r} cannot be opened: {first}") from error
    finally:
        optuna.logging.set_verbosity(before)


def run_trials(study: Study, count: int, train: Callable[[Trial], float | None]) -> None:
    """Run trials until a study has `count` finished ones, over all processes; trials without a value are pruned.

    The same call resumes a search that was interrupted: a killed trial does not count, and the trial that replaces it
    has its place, see `claim_place`.
    """
    from optuna.trial import TrialState

    while count_finished(study) < count:
        trial, value, state = study.ask(), None, TrialState.FAIL
        try:
            value = train(trial)
            is_defined = value is not None and not math.isnan(value)
            state = TrialState.COMPLETE if is_defined else TrialState.PRUNED
        finally:
            study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        logger.info("trial %d: %s %s", trial.number, state.name.lower(), value)


def count_finished(study: Study) -> int:
    """Return the number of trials that finished or were pruned."""
    return sum(trial.state.name in FINISHED for trial in study.get_trials(deepcopy=False))


def claim_place(trial: Trial) -> int:
    """Return how many trials before this one have finished or may be running, and note the trial's process."""
    # Trials of other processes count too, so that two processes never have the same place.
    trial.set_user_attr(PROCESS, [platform.node(), os.getpid()])
    before = [other for other in trial.study.get_trials(deepcopy=False) if other.number < trial.number]
    return sum(other.state.name in FINISHED or _may_be_running(other) for other in before)


def _may_be_running(trial: FrozenTrial) -> bool:
    """Return whether a trial's process may be alive; processes of other machines are taken to be."""
    machine, process = trial.user_attrs.get(PROCESS, (None, 0))
    is_alive = machine != platform.node() or process_start_time(process) is not None
    return trial.state.name == "RUNNING" and is_alive


class Candidate(NamedTuple):
    """The values of the searched parameters by name, the recipe with those that are its own, and the run's options."""

    values: Mapping[str, Any]
    recipe: Recipe
    options: Mapping[str, Any]

    def change_options(self, options: RunOptions, seed: int) -> RunOptions:
        """Return the options of a run with the candidate's values: options of a run, or arguments of the Trainer."""
        names = {field.name for field in fields(RunOptions)}
        own = {name: value for name, value in self.options.items() if name in names}
        arguments = {name: value for name, value in self.options.items() if name not in names}
        return replace(options, **{"seed": seed, **own, "arguments": {**options.arguments, **arguments}})


@dataclass(frozen=True)
class Search:
    """A search over parameters of a recipe, options of a run, and arguments of the Trainer.

    Chosen is the combination with the best `figure` among those whose task metric (accuracy) is at most .01 below that
    of the best one. Runs that did not keep their bound do not count. With `by` that figure alone chooses.

    Attributes:
        candidates: the combinations of the values.
        figure: the metric and the explainer that the recipe exists for, judged on up to 200 dev rows; of a recipe
            without them the figure that chooses its checkpoints, empty for the task's metric.
        higher_is_better: the direction of the figure.
        by: a figure of the evaluation on dev that chooses instead, such as `cross_entropy`.
        seeds: each combination is trained with each of these seeds, and judged by the mean; empty: the run's seed.
    """

    candidates: Sequence[Candidate]
    figure: str
    higher_is_better: bool = True
    by: str | None = None
    seeds: Sequence[int] = ()

    @classmethod
    def create(
        cls,
        make_recipe: Callable[..., Recipe],
        values: Mapping[str, Iterable[Any]],
        own: Collection[str],
        by: str | None = None,
        seeds: Sequence[int] = (),
    ) -> Search:
        """Return the search over every combination of the values.

        Args:
            make_recipe: makes the recipe with some of its parameters changed.
            values: the values of each searched parameter, by its name.
            own: the names of the recipe's parameters; others are options of a run or arguments of the Trainer.
            by: see `Search`.
            seeds: see `Search`.

        Raises:
            ExpoundError: no values, values that are no text and no numbers, or a recipe whose runs have no figure in
                common to choose by; else as `make_recipe`.
        """
        columns = {name: list(each) for name, each in values.items()}
        candidates = []
        for combination in product(*columns.values()):
            chosen = dict(zip(columns, combination, strict=True))
            for name, value in chosen.items():
                if not isinstance(value, str | int | float | None):
                    raise ExpoundError(f"expected text or numbers as values of {name} to search, got {value!r}")
            others = {name: value for name, value in chosen.items() if name not in own and is_run_option(name)}
            params = {name: value for name, value in chosen.items() if name not in others}
            candidates.append(Candidate(chosen, make_recipe(**params), others))
        if not columns or not candidates:
            raise ExpoundError("expected a parameter and its values to search, such as weight=0.1,1,10")
        figures = sorted({by or _name_figure(candidate.recipe) for candidate in candidates})
        if len(figures) > 1:
            raise ExpoundError(f"runs are compared by one figure, but these have several: {', '.join(figures)}")
        effect = candidates[0].recipe.effect
        higher_is_better = effect is None or metric(effect.metric).card.higher_is_better
        return cls(candidates, figures[0], higher_is_better, by, seeds)

    def train(
        self,
        model: Source,
        train: Dataset,
        dev: Dataset,
        output_dir: str | Path,
        options: RunOptions | None = None,
        **params: Any,
    ) -> TrainResult:
        """Train each candidate in a folder in `output_dir`/search, and copy the chosen run to `output_dir`.

        Arguments: see `Recipe.train`; the same call resumes an interrupted search. The record in
        `output_dir` has the figures of all runs. A model that is passed as an object stays as it is.

        Raises:
            ExpoundError: the folder holds something else, there are several processes, or no run can be chosen.
        """
        if PartialState().num_processes > 1:
            raise ExpoundError("a search runs in one process: start it without accelerate or torchrun")
        run_options, folder = RunOptions.with_overrides(options, params), Path(output_dir)
        is_other = folder.is_dir() and any(folder.iterdir()) and not (folder / SEARCH).is_dir()
        if is_other and not run_options.overwrite:
            raise ExpoundError(f"{folder} holds something else: {OTHER_FOLDER}")
        seeds = list(self.seeds) or [run_options.seed]
        runs: list[dict[str, Any]] = []
        # The runs' folders are what a search resumes from, as each knows its configuration.
        for number, candidate in enumerate(self.candidates, start=1):
            logger.warning("search: run %d of %d, %s", number, len(self.candidates), describe_values(candidate.values))
            judged = []
            for seed in seeds:
                result = self._train_in(folder, candidate, seed, model, train, dev, run_options)
                if not result.finished:
                    return result
                judged.append(self._judge(candidate.recipe, result, dev))
            figures = {name: _average([each[name] for each in judged]) for name in ("value", "task_value")}
            runs.append({**candidate.values, **figures, "feasible": all(each["feasible"] for each in judged)})
        compared = runs if self.by is None else [{**run, "task_value": None} for run in runs]
        chosen = self.candidates[choose_run(compared, self._is_higher_better(result))]
        # the finished run is loaded from its folder, and not repeated
        run_options = replace(run_options, overwrite=False, resume=True)
        result = self._train_in(folder, chosen, seeds[0], model, train, dev, run_options)
        task_metric = _name_task_metric(result)
        facts: dict[str, Any] = {
            "figure": self.figure or task_metric,
            "task_metric": task_metric,
            "chosen": chosen.values,
            "runs": runs,
        }
        if self.seeds:
            facts["seeds"] = seeds
        _copy_run(Path(result.output_dir), folder, {SEARCH: facts})
        return replace(result, output_dir=folder)

    def _judge(self, recipe: Recipe, result: TrainResult, dev: Dataset) -> dict[str, Any]:
        """Return the `value` of a run's figure, its `task_value`, and whether it is `feasible`, see `choose_run`."""
        task_value = result.metrics.get(_name_task_metric(result))
        value = result.metrics.get(self.figure, task_value)
        if self.by is not None and self.by not in result.metrics:
            raise unknown("figure to search by", self.by, sorted(result.metrics))
        if self.by is None and recipe.effect is not None:
            value = _measure_effect(recipe.effect, result, dev)
        # an explained model stays as it is, and so does its accuracy
        if recipe.keeps_model:
            task_value = None
        return {"value": value, "task_value": task_value, "feasible": result.metrics.get("feasible") != 0}

    def _is_higher_better(self, result: TrainResult) -> bool:
        """Return the direction of the figure that chooses."""
        if self.by is None:
            return self.higher_is_better
        recipe = self.candidates[0].recipe
        terms = (*recipe.objectives, *getattr(recipe, "criteria", ()))
        return recipe.module.higher_is_better(result.model.task.name, terms).get(self.by, True)

    def _train_in(
        self,
        folder: Path,
        candidate: Candidate,
        seed: int,
        model: Source,
        train: Dataset,
        dev: Dataset,
        options: RunOptions,
    ) -> TrainResult:
        """Train a run of a candidate in its own folder, starting from a copy of a model object."""
        start = model if candidate.recipe.keeps_model else deepcopy(model)
        name = describe_values({**candidate.values, **({"seed": seed} if self.seeds else {})})
        own = folder / SEARCH / quote(name.replace("=", "-"), safe=",")
        return candidate.recipe.train(start, train, dev, own, candidate.change_options(options, seed))


def is_run_option(name: str) -> bool:
    """Return whether a name is an option of a run or an argument of the Trainer."""
    return name not in PYTHON_ONLY and name in {
        field.name for kind in (RunOptions, TrainingArguments) for field in fields(kind)
    }


def choose_run(runs: Sequence[Mapping[str, Any]], higher_is_better: bool) -> int:
    """Return the index of the best run by `value` among the runs that are feasible and near the best `task_value`.

    Raises:
        ExpoundError: no run is feasible and has a value.
    """
    usable = [index for index, run in enumerate(runs) if run["feasible"] and run["value"] is not None]
    if not usable:
        raise ExpoundError("no run of the search can be chosen: the bound is not kept, or the figure is undefined")
    task_values = {index: runs[index]["task_value"] for index in usable if runs[index]["task_value"] is not None}
    if task_values:
        # rounding of floats does not decide whether a run is .01 below
        floor = max(task_values.values()) - FLOOR - 1e-9
        usable = [index for index, value in task_values.items() if value >= floor]
    sign = 1 if higher_is_better else -1
    # of equal runs max takes the first
    return max(usable, key=lambda index: sign * runs[index]["value"])


def describe_values(values: Mapping[str, Any]) -> str:
    """Return the values of a run as text, such as `weight=0.1`."""
    parts = []
    for name, value in values.items():
        # the same folder for 10 and 10.0
        text = f"{value:.15g}" if isinstance(value, float) else str(value)
        parts.append(f"{name}={text}")
    return ",".join(parts)


def _name_figure(recipe: Recipe) -> str:
    """Return the name of the figure that chooses among runs of a recipe, see `Search`."""
    if recipe.effect is not None:
        return f"{recipe.effect.metric} of {recipe.effect.explainer.replace(':{run}', '')}"
    figure = str(recipe.arguments.get("metric_for_best_model", ""))
    if figure == "loss":
        raise ExpoundError(f"{recipe.name} has no figure to choose by: the loss depends on what is searched")
    return figure


def _name_task_metric(result: TrainResult) -> str:
    """Return the metric of the run's task by which checkpoints are chosen by default, such as accuracy."""
    return next(iter(HIGHER_IS_BETTER[result.model.task.name]))


def _average(values: Sequence[float | None]) -> float | None:
    """Return the mean, None if one of the values is undefined."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _measure_effect(effect: Effect, result: TrainResult, dev: Dataset) -> float | None:
    """Return the mean metric of the effect on dev rows, None if it is undefined; the run's record keeps it."""
    folder, judge = Path(result.output_dir), metric(effect.metric)
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    if FIGURE in record:
        known: float | None = record[FIGURE]
        return known
    method = explainer(effect.explainer.replace("{run}", str(folder)), result.model)
    rows = list(sample_evenly(dev, JUDGED_ROWS))
    found = []
    for indices in make_batches(result.model, rows):
        batch = result.model.encode([rows[index] for index in indices])
        scores = method.attribute(result.model, batch)
        found.append(judge.evaluate(result.model, batch, scores)[judge.name].cpu())
    mean = float(torch.cat(found).double().nanmean())
    value = None if math.isnan(mean) else mean
    add_to_record(folder, {FIGURE: value})
    return value


def _copy_run(chosen: Path, folder: Path, facts: Mapping[str, Any]) -> None:
    """Copy a finished run to another folder without its checkpoints, and add facts to the record there."""
    record = json.loads((chosen / RECORD).read_text(encoding="utf-8"))
    run = TrainingRun(folder, record["config"])
    metrics = json.loads((chosen / METRICS).read_text(encoding="utf-8"))
    with run.writing():
        staging = run.empty_staging_folder()
        shutil.copytree(chosen, staging, ignore=shutil.ignore_patterns("checkpoint-*", LOCK, RECORD, METRICS))
        run.finish(staging, metrics)
        add_to_record(folder, {**record, **facts})
