"""A study records calls of `train` and `judge` as cells; nothing is executed while its function runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from itertools import product
from typing import Any, TypeAlias

from expound.data.spans import UnitName
from expound.errors import ExpoundError, check_choice
from expound.recipes import RECIPES
from expound_papers.runs.store import Cell
from expound_papers.study.addresses import AddressBook, add_part
from expound_papers.study.display import ComparisonPart, FigurePart, Names, TablePart
from expound_papers.study.judgements import JudgementCall, Specs, as_explainer, make_judgements
from expound_papers.study.order import select_runs, sort_runs
from expound_papers.study.parts import Data, Explainer, Model, Place, Runs, StudyRun, Training, as_list
from expound_papers.study.trainings import RUN_OPTIONS, TrainingCall, make_training

TRIAL, TRIAL_SEEDS = "trial", [7]


class Study:
    """A study at one scale: its runs, and the tables and figures of the results.

    A function gets an empty study and calls its methods. `train` returns runs, which may be judged, start other runs,
    or be a parameter of them. Parts are known by their names, which titles, tables and pages show.

    Attributes:
        name: the study's name with its scale, as `er-table-2-small`.
        scale: `small`, `paper`, or `trial`: as small, with another seed, and judged on rows that small does not use.
        seeds: the seeds of runs for which no others are named; a number N means 0 to N − 1.
        arguments: arguments of the Trainer for all runs; those of the training data and of a run override them.
        preset: `paper` if recipes have the papers' values where the study states none.
        addresses: addresses of the `datasets` for training, those that are `judged`, and `models`, by name.
        missing: a line for each dataset or model that is not on this machine.
    """

    def __init__(
        self,
        name: str,
        scale: str = "small",
        recorded: Mapping[str, Mapping[str, Any]] | None = None,
        reserved: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.name, self.scale = f"{name}-{scale}", scale
        self._book = AddressBook(recorded, reserved)
        self.title, self.notes, self.preset = "", "", ""
        self.arguments: Mapping[str, Any] = {}
        self._seeds = TRIAL_SEEDS if scale == TRIAL else [0]
        self.trainings: dict[str, Training] = {}
        self.models = self._book.models
        self.recipes: dict[str, Runs] = {}
        self.datasets = self._book.datasets
        self.judgements: dict[str, Runs | None] = {}
        self.explainers: dict[str, Explainer] = {}
        self.metrics: dict[str, str] = {}
        self.comparisons: dict[str, ComparisonPart] = {}
        self.tables: dict[str, TablePart] = {}
        self.figures: dict[str, FigurePart] = {}
        self.addresses, self.missing = self._book.addresses, self._book.missing
        self._runs: list[StudyRun] = []
        self._ordered: list[StudyRun] = []

    @property
    def is_small(self) -> bool:
        """Whether the scale is small, or a trial of it."""
        return self.scale != "paper"

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds of runs for which no others are named."""
        return self._seeds

    @seeds.setter
    def seeds(self, seeds: int | Sequence[int]) -> None:
        if self.scale != TRIAL:
            self._seeds = _list_seeds(seeds)

    def train(
        self,
        name: str,
        recipe: str | None,
        data: Training | Sequence[Training] | None,
        model: Model | Sequence[Model],
        *,
        start: Runs | None = None,
        seeds: int | Sequence[int] | None = None,
        arguments: Mapping[str, Any] | None = None,
        patience: int | None = None,
        options: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Runs:
        """Record a training for each training data, model and seed, and return its runs.

        Args:
            name: the name of the runs in titles and tables.
            recipe: a recipe's id; None judges the model as it is, or that of `start`.
            data: the data of the training.
            model: the model that training starts from.
            start: runs whose trained model is the start instead.
            seeds: default: the study's.
            arguments: arguments of the Trainer; None as a value leaves one to the recipe.
            patience: of early stopping.
            options: other fields of `expound.training.RunOptions`, see RUN_OPTIONS.
            **parameters: of the recipe. Runs stand for their folder, `Runs.figure` for a number, a `Data` or `Model`
                for itself, a `Spec` for a text with a model's source in it.

        Raises:
            ExpoundError: an unknown recipe, parameter or option, or a run that does not exist.
        """
        trainings, models = as_list(data), as_list(model)
        no_data: list[Training | None] = [None]
        for option in options or ():
            check_choice("option of a run", option, RUN_OPTIONS)
        if name in self.recipes:
            raise ExpoundError(f"{self.name}: {name} is trained twice")
        if recipe is None and parameters:
            raise ExpoundError(f"{name} trains nothing, and has no parameters, got {', '.join(parameters)}")
        if recipe is not None:
            check_choice("recipe", recipe, RECIPES)
            if not trainings:
                raise ExpoundError(f"{name}: no data to train on")
        for training in trainings:
            add_part(self.trainings, "training data", training.name, training)
            self._book.add_data("datasets", training.train)
            self._book.add_data("datasets", training.dev)
        for each in models:
            add_part(self.models, "model", each.name, each)
        cells: dict[Place, Cell | None] = {}
        runs = Runs(
            name, recipe, parameters, arguments or {}, recipe is not None or start is not None, cells,
            {each.name: each for each in models},
        )  # fmt: skip
        call = TrainingCall(runs, start, self.arguments, self.preset or None, patience, options or {})
        for given, each, seed in product(
            trainings or no_data, models, self.seeds if seeds is None else _list_seeds(seeds)
        ):
            place = Place(given.name if given else "", each.name, seed)
            self._book.find_model(each, seed)
            if recipe is None or given is None:
                cells[place] = None if start is None else start.find_cell(place)
                continue
            cell = make_training(self._book, call, given, each, place)
            cells[place] = cell
            self._runs.append(StudyRun(cell, given.name, each.name, name, seed))
        self.recipes[name] = runs
        return runs

    def judge(
        self,
        name: str,
        runs: Runs | Sequence[Runs],
        on: Data | Sequence[Data],
        explainers: Mapping[str, str | Explainer] | None = None,
        metrics: Specs | None = None,
        *,
        model: Runs | None = None,
        protocol: str | None = None,
        limits: Mapping[str, int] | None = None,
        target: str | int = "predicted",
        keep_attributions: bool = False,
        layers: bool = False,
        special_tokens: bool = False,
        unit: UnitName | None = None,
        **options: Any,
    ) -> None:
        """Record a judgement of each run on each dataset: its performance, and metrics of its explanations.

        Args:
            name: the judgement's name in titles and tables.
            runs: the runs that are judged.
            on: the datasets.
            explainers: spec (or `Explainer`) by name.
            metrics: spec by name; `{run:RECIPE}` in it is the folder of other runs, which their text gives: f"{runs}".
            model: judge the model of these runs instead, as when the judged runs learned an explainer of it.
            protocol: further figures of the model, see `expound_papers.protocols`.
            limits: number of examples that an explainer is judged on; a smaller sample is part of a larger one.
            target: explain the `predicted` class, the `label`, or a class.
            keep_attributions: keep the scores, for figures of their agreement.
            layers: also judge each layer's scores by the metrics on rationales.
            special_tokens: metrics that use special tokens see their scores; otherwise these count as 0.
            unit: the units of generated text that are scored and removed; default: sources, or else sentences.
            **options: of the protocol; runs, datasets and models as in `train`.

        Raises:
            ExpoundError: an unknown explainer, metric, protocol or option, or a run that does not exist.
        """
        how: dict[str, Any] = {"target": target, "keep_attributions": keep_attributions, "layers": layers}
        # Keys that came later are left out at their default, so that older cells keep their addresses.
        how |= {"special_tokens": True} if special_tokens else {}
        how |= {} if unit is None else {"unit": unit}
        chosen = {key: as_explainer(each) for key, each in (explainers or {}).items()}
        call = JudgementCall(name, chosen, metrics or {}, model, protocol, limits or {}, options, how, self.recipes)
        call.check()
        for key, each in chosen.items():
            add_part(self.explainers, "explainer", key, each)
        for key, spec in call.metrics.items():
            add_part(self.metrics, "metric", key, spec)
        self.judgements[name] = model
        for judged in as_list(runs):
            for place in judged.cells:
                for data in as_list(on):
                    self._runs += make_judgements(self._book, call, judged, place, data)

    def compare(self, name: str, judgements: Names, measure: str = "kendall", against: Runs | None = None) -> None:
        """Record a comparison of kept attributions as a figure of each run, see `ComparisonPart`."""
        names = [judgements] if isinstance(judgements, str) else list(judgements)
        for judgement in names:
            check_choice("judgement", judgement, self.judgements)
        self.comparisons[name] = ComparisonPart(names, measure, against.name if against else None)

    def table(self, name: str, caption: str, **fields: Any) -> None:
        """Record a table, with the fields of `TablePart`."""
        part = TablePart(caption, **fields)
        self._check_filter(part.where)
        for row in part.gain.values():
            valid = [*self.recipes, *self.explainers, *self.trainings, *self.models]
            check_choice("recipe, explainer, training or model", row, valid)
        self.tables[name] = part

    def figure(self, name: str, kind: str, caption: str = "", **fields: Any) -> None:
        """Record a figure, with the fields of `FigurePart`."""
        part = FigurePart(kind, caption, **fields)
        self._check_filter(part.where)
        if part.table:
            check_choice("table", part.table, self.tables)
        for axis in (*as_list(part.x), *as_list(part.y)):
            self._check_filter({"dataset": as_list(axis.dataset), "explainer": as_list(axis.explainer)})
        self.figures[name] = part

    def _check_filter(self, where: Mapping[str, Any]) -> None:
        known: dict[str, Collection[str]] = {
            "training": self.trainings, "model": self.models, "recipe": self.recipes, "dataset": self.datasets,
            "judgement": self.judgements, "explainer": self.explainers,
        }  # fmt: skip
        for field, names in where.items():
            for name in names if field in known else ():
                check_choice(field, name, known[field])

    @property
    def runs(self) -> list[StudyRun]:
        """The runs in the order in which they start: by training data, model, recipe and seed, judgements last."""
        # Tables ask often: they are sorted again only after another call was recorded.
        if len(self._ordered) != len(self._runs):
            self._ordered = sort_runs(self._runs, self.trainings, self.models, self.recipes, self.judgements)
        return self._ordered

    @property
    def cells(self) -> list[Cell]:
        """The cells of all runs, each once."""
        return list({run.cell.key: run.cell for run in self.runs}.values())

    def describe(self) -> dict[str, Any]:
        """Return what the study consists of as JSON values, for its report."""
        recipes = {}
        for name, runs in self.recipes.items():
            parameters = {key: str(value) for key, value in runs.parameters.items()}
            recipes[name] = {"recipe": runs.recipe, "parameters": parameters, "arguments": dict(runs.arguments)}
        return {
            "name": self.name,
            "datasets": {name: data.resolve() for name, data in self.datasets.items()},
            "models": {name: model.source for name, model in self.models.items()},
            "recipes": recipes,
            "arguments": dict(self.arguments),
            "explainers": {name: each.spec for name, each in self.explainers.items()},
            "metrics": dict(self.metrics),
        }

    def select(self, pattern: str | None) -> Study:
        """Return the study of the runs whose title contains a pattern (with * and ?), and of what they need."""
        if pattern is None:
            return self
        found = copy(self)
        found._runs = select_runs(self._runs, pattern)
        return found


StudyFunction: TypeAlias = Callable[[Study], None]


def choose(parts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return some of named parts, in the order of the names. Raises ExpoundError for an unknown name."""
    for name in names:
        check_choice("name", name, parts)
    return {name: parts[name] for name in names}


def _list_seeds(seeds: int | Sequence[int]) -> list[int]:
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)
