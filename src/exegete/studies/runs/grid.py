"""From a study to its runs, each with the address of all that it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from exegete.errors import ExegeteError
from exegete.metrics import metric
from exegete.studies.runs import estimate
from exegete.studies.runs import explainers as explaining
from exegete.studies.runs import recipes as methods
from exegete.studies.runs.explainers import Chosen
from exegete.studies.runs.kinds import judge_model, train_model
from exegete.studies.runs.protocols import registry as protocols
from exegete.studies.runs.run_ref import (
    DATASET,
    MODEL,
    NAMED,
    OWN,
    TRAINED,
    RunRef,
    meant,
    parts_named,
    run_refs,
    runs_named,
    seeds,
)
from exegete.studies.runs.store import Cell
from exegete.studies.spec import sources
from exegete.studies.spec.schema import SEED, JudgementPart, RunPart
from exegete.studies.spec.study_file import Study
from exegete.studies.spec.yaml_lines import Place as Line


@dataclass(frozen=True)
class Run:
    """A cell with its place in the grid: names of the study file.

    A judged run has a `dataset` and `judgement`; one that trains has none. `explainers`: what its results are stored
    under, by name. `partly`: of explainers that are judged on a part of the examples, beside a run on all of them.
    """

    cell: Cell
    training: str
    model: str
    recipe: str
    seed: int
    dataset: str = ""
    judgement: str = ""
    explainers: Mapping[str, str] = field(default_factory=dict)
    partly: bool = False

    @property
    def title(self) -> str:
        """The place in words, as patterns of `--only` see it."""
        return self.cell.title if self.partly else _title(*_place(self), self.judgement, self.dataset)


@dataclass(frozen=True)
class Grid:
    """A study's runs in the order they are begun, and what of it is not on this machine.

    `addresses`: of its `datasets`, as it trains on them and as it is `judged` on them, and of its `models`, by name.
    """

    study: Study
    runs: Sequence[Run]
    missing: Sequence[str]
    addresses: Addresses = field(default_factory=dict)

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
        return replace(self, runs=[run for run in self.runs if run.cell.key in wanted])


def grid(study: Study, recorded: Addresses | None = None) -> Grid:
    """All runs of a study: every training of every recipe on every model and data by every seed, and its judgements.

    `recorded`: the addresses that datasets and models have elsewhere; they stand in for what is not on this machine.

    Raises:
        ExegeteError: a run that is needed is not there, or needs itself; with file and line.
    """
    builder = _Builder(study, recorded or {})
    runs = builder.runs()
    kinds = {"datasets": builder.datasets, "judged": builder.judged, "models": builder.models}
    addresses = {kind: {name: each.address for name, each in found.items()} for kind, found in kinds.items()}
    return Grid(study, runs, builder.missing(), addresses)


Addresses: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]
Resolved: TypeAlias = tuple[dict[str, Any], list[Cell | None], dict[str, Any]]


class _Builder:
    """Makes the cells of one study, those that others need first."""

    def __init__(self, study: Study, recorded: Addresses) -> None:
        self.study, self.file = study, study.file
        datasets = {name: sources.dataset(study.dataset(name)) for name in self.file.datasets}
        names = {name for part in self.file.judgements.values() for name in part.datasets}
        judged = {name: sources.dataset(study.dataset(name, judged=True)) for name in sorted(names)}
        own = {(place.model, place.seed) for place in run_refs(self.file)} | {
            (name, 0) for name, part in self.file.models.items() if SEED not in part.source
        }
        models = {self._name(name, seed): sources.model(self.file.models[name].at(seed)) for name, seed in sorted(own)}
        self.datasets, self.judged, self.models = (
            {name: _known(each, recorded.get(kind, {}).get(name)) for name, each in found.items()}
            for kind, found in (("datasets", datasets), ("judged", judged), ("models", models))
        )
        self.metrics = {spec: metric(spec) for spec in self.file.metrics.values()}
        self.trained: dict[RunRef, Cell | None] = {}
        self.begun: set[RunRef] = set()
        self.found: list[Run] = []
        self._places = frozenset(run_refs(self.file))

    def _name(self, model: str, seed: int) -> str:
        """What a model is kept under: its name, and the seed where its source is another one for each."""
        return f"{model}{OF_SEED}{seed}" if SEED in self.file.models[model].source else model

    def _start(self, place: RunRef) -> sources.Source:
        return self.models[self._name(place.model, place.seed)]

    def missing(self) -> list[str]:
        """Datasets and models that cannot be found on this machine, each with the line that asks for it."""
        asked = {name: self.judged.get(name, source) for name, source in self.datasets.items()}
        asked_at = [(("datasets", name, "spec"), source) for name, source in asked.items()]
        asked_at += [(("models", name.split(OF_SEED)[0], "source"), source) for name, source in self.models.items()]
        return [str(self.study.error(place, source.problem)) for place, source in asked_at if source.problem]

    def runs(self) -> list[Run]:
        """All runs of the study: its trainings and their judgements."""
        for place in run_refs(self.file):
            trained = self._train(place)
            for name, judgement in self.file.judgements.items():
                if _asked(judgement, place):
                    self._judge(name, judgement, place, trained)
        return self.found

    def _train(self, place: RunRef) -> Cell | None:
        """The training run of a place; that of another place where nothing is trained but a run's model taken."""
        if place not in self.trained:
            if place in self.begun:
                raise self.study.error(("recipes", place.recipe), f"{place.recipe} needs itself")
            self.begun.add(place)
            self.trained[place] = self._trained(place)
        return self.trained[place]

    def _trained(self, place: RunRef) -> Cell | None:
        part, start = self.file.recipes[place.recipe], self.file.models[place.model]
        line = ("recipes", place.recipe)
        other = None if part.model is None else self._model(part.model, place, (*line, "model"))
        if part.recipe == methods.NONE:
            return other
        data = self.file.training[place.training]
        arguments = {**self.file.arguments, **data.arguments, **part.arguments}
        parameters, needs, parts = self._parameters(place, (*line, "parameters"))
        source = start.source if part.model is None else _A_RUN
        config = methods.resolved(part.recipe, parameters, arguments, source) | {
            "kind": "train",
            "train": self.datasets[data.train].address,
            "dev": self.datasets[data.dev].address,
            "model": self._start(place).address if other is None else _inside(other, part.model),
            "max_length": start.max_length,
            "early_stopping_patience": part.early_stopping_patience,
            "seed": place.seed,
        }
        config |= {"options": part.options} if part.options else {}
        if other is None and start.prompt is not None:
            config["prompt"] = start.prompt.model_dump()
            if part.recipe not in methods.EXPLAINING:
                message = (
                    f"a prompted model stays as it is: {part.recipe} trains it ({', '.join(methods.EXPLAINING)} do not)"
                )
                raise self.study.error(line, message)
        found = {name: self.study.dataset(getattr(data, name)) for name in ("train", "dev")}
        others = {key: value for key, value in arguments.items() if key not in config["arguments"]}
        cell = Cell(
            config,
            train_model,
            _title(*_place(place)),
            _keys([*needs, other]),
            found | {"model": start.at(place.seed), "arguments": others, "parts": parts},
            estimate.training(self.datasets[data.train], self.datasets[data.dev], self._start(place), config),
        )
        self.found.append(Run(cell, *place))
        return cell

    def _parameters(self, place: RunRef, line: Line) -> Resolved:
        """The recipe's parameters, those that other runs give by these runs' addresses; these runs; where parts are."""
        given = self.file.recipes[place.recipe].parameters
        parameters, needs, parts = self._values(given, place, line)
        for name, value in methods.references(given).items():
            other = str(value[methods.FROM])
            runs = [
                self._other(RunPart(run=other, seed=seed), place, (*line, name)) for seed in seeds(self.file, other)
            ]
            parameters[name] = {
                "runs": list(_keys(runs)),
                "metric": value["metric"],
                "of": value.get("of"),
                "times": value.get("times", 1.0),
            }
            needs += runs
        return parameters, needs, parts

    def _values(self, given: Mapping[str, Any], place: RunRef, line: Line) -> Resolved:
        """The values, runs, datasets and models among them by their addresses; these runs; and where the others are."""
        values, needs, parts = dict(given), list[Cell | None](), dict[str, Any]()
        for name, part in runs_named(given).items():
            cell = self._model(part, place, (*line, name))
            if cell is not None:
                values[name] = _inside(cell, part)
                needs.append(cell)
            else:
                values[name] = {MODEL: self._start(place).address}
                parts[name] = self.file.models[place.model].at(place.seed)
        for name, dataset in parts_named(given, DATASET).items():
            values[name], parts[name] = {DATASET: self.datasets[dataset].address}, self.study.dataset(dataset)
        for name, model in parts_named(given, MODEL).items():
            address = self.models[self._name(model, place.seed)].address
            values[name], parts[name] = {MODEL: address}, self.file.models[model].at(place.seed)
        return values, needs, parts

    def _other(self, part: RunPart, place: RunRef, line: Line) -> Cell:
        """The run that a part means."""
        try:
            needed = meant(self.file, part, place)
        except ExegeteError as error:
            raise self.study.error(line, error) from error
        cell = self._train(needed)
        if cell is None:
            raise self.study.error(line, f"{part.run} trains nothing, so it has no folder")
        return cell

    def _model(self, part: RunPart, place: RunRef, line: Line) -> Cell | None:
        """The run that a part means; None where its recipe takes the grid's model as it is."""
        own = RunRef(place.training, place.model, part.run, place.seed)
        taken = part == RunPart(run=part.run) and own in self._places and self._train(own) is None
        return None if taken else self._other(part, place, line)

    def _judge(self, name: str, judgement: JudgementPart, place: RunRef, trained: Cell | None) -> None:
        """Adds the runs of a judgement of one place in the grid: one for each dataset and limit of its explainers."""
        line: Line = ("judgements", name)
        judged = trained if judgement.model is None else self._model(judgement.model, place, (*line, "model"))
        chosen, learned = self._explainers(judgement, place, trained)
        options, needed, parts = self._values(judgement.options, place, (*line, "options"))
        metrics, copies = self._metrics(judgement, place)
        for dataset in judgement.datasets:
            part, data = self.study.dataset(dataset, judged=True), self.judged[dataset]
            for limit, few in _by_limit(judgement, chosen, len(data.lengths)).items():
                config = self._judged_by(judgement, place, few, options) | {
                    "metrics": metrics,
                    "model": self._start(place).address if judged is None else _inside(judged, judgement.model),
                    "dataset": data.address,
                }
                prompt = self.file.models[place.model].prompt
                if judged is None and prompt is not None:
                    config["prompt"] = prompt.model_dump()
                if limit:
                    config["limit"] = limit
                if chosen and self.file.models[place.model].full_attention:
                    config["full_attention"] = True
                title = f"first {limit}" if limit else ""
                cell = Cell(
                    config,
                    judge_model,
                    _title(*_place(place), name, title, dataset),
                    _keys([judged, *learned, *needed, *copies]),
                    {"model": self.file.models[place.model].at(place.seed), "dataset": part, "parts": parts},
                    self._judging(data, place, config, judgement.options),
                )
                specs = {key: each.spec for key, each in few.items()}
                self.found.append(Run(cell, *place, dataset, name, specs, partly=limit > 0))

    def _judged_by(
        self, judgement: JudgementPart, place: RunRef, chosen: Mapping[str, Chosen], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A judgement's facts, but for the metrics, the model and the data."""
        config: dict[str, Any] = {
            "kind": "judge",
            "explainers": {each.spec: each.facts for each in chosen.values()},
            "target": judgement.target,
            "keep_attributions": judgement.keep_attributions,
            "layers": judgement.layers,
            "seed": place.seed,
        }
        if judgement.special_tokens:
            config["special_tokens"] = True
        if judgement.unit is not None:
            config["unit"] = judgement.unit
        if judgement.protocol is not None:
            known = protocols.with_defaults(judgement.protocol, options)
            config["protocol"] = {"name": judgement.protocol, "options": known}
        return config

    def _metrics(self, judgement: JudgementPart, place: RunRef) -> tuple[dict[str, Any], list[Cell]]:
        """A judgement's metrics with all their parameters by spec, and the runs whose folders are among these."""
        found, needs = dict[str, Any](), list[Cell]()
        for name in judgement.metrics or ():
            spec = self.file.metrics[name]
            runs = {each: self._other(RunPart(run=each), place, ("metrics", name)) for each in NAMED.findall(spec)}
            named = {"runs": {recipe: cell.key for recipe, cell in runs.items()}} if runs else {}
            found[spec] = {**_facts(self.metrics[spec]), **named}
            needs += runs.values()
        return found, needs

    def _explainers(
        self, judgement: JudgementPart, place: RunRef, trained: Cell | None
    ) -> tuple[dict[str, Chosen], list[Cell | None]]:
        """A judgement's explainers of a run by name, and the runs in which learned ones are."""
        found, needs = dict[str, Chosen](), list[Cell | None]()
        for name in judgement.explainers or ():
            part, cell = self.file.explainers[name], None
            if part.source is not None:
                cell = self._other(part.source, place, ("explainers", name))
            elif OWN in part.spec:
                cell = trained
                if cell is None:
                    message = f"comes from the judged run, but {place.recipe} trains nothing: name a run, or recipes"
                    raise self.study.error(("explainers", name), message)
            found[name] = explaining.chosen(part, None if cell is None else cell.key)
            needs.append(cell)
        return found, needs

    def _judging(
        self, data: sources.Source, place: RunRef, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> float:
        """The operations of a judgement, roughly."""
        length, source = self.file.models[place.model].max_length, self._start(place)
        if "protocol" in config:
            parts = {name: self.datasets[dataset] for name, dataset in parts_named(options, DATASET).items()}
            return estimate.following(data, source, config, parts, length)
        judges = [self.metrics[spec] for spec in config["metrics"]]
        whole = estimate.judging(data, source, config["explainers"], judges)
        return whole * float(config.get("limit", len(data.lengths)) / len(data.lengths))


def _known(source: sources.Source, recorded: Mapping[str, Any] | None) -> sources.Source:
    """The source, by its recorded address where its content is not on this machine."""
    here = {"digest", "files", "size"}.intersection(source.address)
    return source if here or recorded is None else source._replace(address=recorded)


_A_RUN = "the model of a run"
OF_SEED = ", seed "


def _asked(judgement: JudgementPart, place: RunRef) -> bool:
    """Whether a judgement is about the runs of a place."""
    limits = ((judgement.recipes, place.recipe), (judgement.trainings, place.training), (judgement.models, place.model))
    return all(names is None or name in names for names, name in limits)


def _by_limit(judgement: JudgementPart, chosen: Mapping[str, Chosen], rows: int) -> dict[int, dict[str, Chosen]]:
    """The explainers by the number of examples that they are judged on; 0 for all, which is always there."""
    found: dict[int, dict[str, Chosen]] = {0: {}}
    for name, each in chosen.items():
        limit = judgement.limits.get(name, rows)
        found.setdefault(limit if limit < rows else 0, {})[name] = each
    return found


def _place(at: Run | RunRef) -> tuple[str, str, str, str]:
    return at.training, at.model, at.recipe, f"seed {at.seed}"


def _inside(cell: Cell, part: RunPart | None) -> dict[str, str]:
    """A run's folder, or one inside it, by the run's address."""
    path = "" if part is None else part.path
    return {TRAINED: cell.key} | ({"path": path} if path else {})


def _keys(cells: Sequence[Cell | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.key for cell in cells if cell is not None))


def _title(*parts: str) -> str:
    return " / ".join(part for part in parts if part)


def _facts(chosen: Any) -> Mapping[str, Any]:
    """A metric with all its parameters."""
    return {"name": chosen.name, **chosen.params}
