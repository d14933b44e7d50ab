"""From a study to its runs, each with the address of all that it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from exegete.explainers import explainer
from exegete.metrics import metric
from exegete.studies import estimate, methods, sources
from exegete.studies.cell import Cell
from exegete.studies.files import Study
from exegete.studies.runs import judge_model, train_model
from exegete.studies.schema import JudgementPart, RecipePart


@dataclass(frozen=True)
class Run:
    """A cell with its place in the grid: names of the study file.

    A judged run has a `dataset` and `judgement`; one that trains has none.
    """

    cell: Cell
    training: str
    model: str
    recipe: str
    seed: int
    dataset: str = ""
    judgement: str = ""

    @property
    def title(self) -> str:
        """The place in words, as patterns of `--only` see it."""
        return _title(self.training, self.model, self.recipe, f"seed {self.seed}", self.judgement, self.dataset)


@dataclass(frozen=True)
class Grid:
    """A study's runs in the order they are begun, and what of it is not on this machine."""

    study: Study
    runs: Sequence[Run]
    missing: Sequence[str]

    @property
    def cells(self) -> list[Cell]:
        """The runs' cells, each once."""
        return list({run.cell.key: run.cell for run in self.runs}.values())

    def only(self, pattern: str | None) -> Grid:
        """The runs whose title has the pattern in it (* and ? allowed), and those that they need."""
        if pattern is None:
            return self
        wanted = {run.cell.key for run in self.runs if pattern in run.title or fnmatchcase(run.title, f"*{pattern}*")}
        needs = {run.cell.key: run.cell.needs for run in self.runs}
        todo = list(wanted)
        while todo:
            more = set(needs.get(todo.pop(), ())) - wanted
            wanted |= more
            todo += more
        return Grid(self.study, [run for run in self.runs if run.cell.key in wanted], self.missing)


def grid(study: Study) -> Grid:
    """All runs of a study: every training of every recipe on every model and data by every seed, and its judgements."""
    builder = _Builder(study)
    runs = list(builder.runs())
    return Grid(study, runs, builder.missing())


class _Builder:
    """Makes the cells of one study."""

    def __init__(self, study: Study) -> None:
        self.study, self.file = study, study.file
        self.datasets = {name: sources.dataset(part) for name, part in self.file.datasets.items()}
        self.models = {name: sources.model(part.source) for name, part in self.file.models.items()}
        self.explainers = {spec: explainer(spec) for spec in self.file.explainers.values()}
        self.metrics = {spec: metric(spec) for spec in self.file.metrics.values()}
        self.trained: dict[tuple[str, str, str, int], Cell] = {}

    def missing(self) -> list[str]:
        """What cannot be found here, with the line that asks for it."""
        places = [(("datasets", name, "spec"), source) for name, source in self.datasets.items()]
        places += [(("models", name, "source"), source) for name, source in self.models.items()]
        return [str(self.study.error(place, source.problem)) for place, source in places if source.problem]

    def runs(self) -> Iterator[Run]:
        """The grid; a run that needs others comes after them."""
        for training in self.file.training or [""]:
            for model in self.file.models:
                for recipe in self._order():
                    for seed in self._seeds(recipe):
                        yield from self._judged(training, model, recipe, seed)

    def _order(self) -> list[str]:
        """Recipes whose figures others take as parameters first."""
        needed = {
            value[methods.FROM]
            for part in self.file.recipes.values()
            for value in methods.references(part.parameters).values()
        }
        return sorted(self.file.recipes, key=lambda name: name not in needed)

    def _seeds(self, recipe: str) -> list[int]:
        return self.file.recipes[recipe].seeds or self.file.seeds

    def _judged(self, training: str, model: str, recipe: str, seed: int) -> Iterator[Run]:
        """A training run, if there is one, and what is asked of its model."""
        cell = None
        if self.file.recipes[recipe].recipe != methods.NONE:
            cell = self._train(training, model, recipe, seed)
            yield Run(cell, training, model, recipe, seed)
        for name, judgement in self.file.judgements.items():
            if judgement.recipes is None or recipe in judgement.recipes:
                for dataset in judgement.datasets:
                    title = _title(training, model, recipe, f"seed {seed}", name, dataset)
                    judged = self._judge(judgement, dataset, model, seed, cell, title)
                    yield Run(judged, training, model, recipe, seed, dataset, name)

    def _train(self, training: str, model: str, recipe: str, seed: int) -> Cell:
        if (training, model, recipe, seed) in self.trained:
            return self.trained[training, model, recipe, seed]
        part, data, start = self.file.recipes[recipe], self.file.training[training], self.file.models[model]
        arguments = {**self.file.arguments, **part.arguments}
        parameters, needs = self._parameters(training, model, part)
        config = methods.resolved(part.recipe, parameters, arguments, start.source) | {
            "kind": "train",
            "train": self.datasets[data.train].address,
            "dev": self.datasets[data.dev].address,
            "model": self.models[model].address,
            "max_length": start.max_length,
            "early_stopping_patience": part.early_stopping_patience,
            "seed": seed,
        }
        found = {name: self.file.datasets[getattr(data, name)].model_dump() for name in ("train", "dev")}
        others = {key: value for key, value in arguments.items() if key not in config["arguments"]}
        cell = Cell(
            config,
            train_model,
            _title(training, model, recipe, f"seed {seed}"),
            needs,
            found | {"model": start.source, "arguments": others},
            estimate.training(self.datasets[data.train], self.datasets[data.dev], self.models[model], config),
        )
        self.trained[training, model, recipe, seed] = cell
        return cell

    def _parameters(self, training: str, model: str, part: RecipePart) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The recipe's parameters, those that other runs give by these runs' addresses."""
        parameters, needs = dict(part.parameters), list[str]()
        for name, value in methods.references(part.parameters).items():
            other = value[methods.FROM]
            runs = [self._train(training, model, other, seed).key for seed in self._seeds(other)]
            parameters[name] = {
                "runs": runs,
                "metric": value["metric"],
                "of": value.get("of"),
                "times": value.get("times", 1.0),
            }
            needs += runs
        return parameters, tuple(dict.fromkeys(needs))

    def _judge(
        self, judgement: JudgementPart, dataset: str, model: str, seed: int, trained: Cell | None, title: str
    ) -> Cell:
        explainers = {self.file.explainers[name]: None for name in judgement.explainers or ()}
        metrics = {self.file.metrics[name]: None for name in judgement.metrics or ()}
        chosen, judges = [self.explainers[spec] for spec in explainers], [self.metrics[spec] for spec in metrics]
        config = {
            "kind": "judge",
            "model": {"trained": trained.key} if trained else self.models[model].address,
            "dataset": self.datasets[dataset].address,
            "explainers": {spec: _facts(self.explainers[spec]) for spec in explainers},
            "metrics": {spec: _facts(self.metrics[spec]) for spec in metrics},
            "target": judgement.target,
            "keep_attributions": judgement.keep_attributions,
            "layers": judgement.layers,
            "seed": seed,
        }
        source = {"model": self.file.models[model].source, "dataset": self.file.datasets[dataset].model_dump()}
        needs = (trained.key,) if trained else ()
        length = self.file.models[model].max_length
        data, start = self.datasets[dataset], self.models[model]
        flops = estimate.judging(data, start, chosen, judges, length)
        return Cell(config, judge_model, title, needs, source, flops)


def _title(*parts: str) -> str:
    return " / ".join(part for part in parts if part)


def _facts(chosen: Any) -> Mapping[str, Any]:
    """An explainer or metric with all its parameters."""
    return {"name": chosen.name, **chosen.params}
