"""The cells of a study's runs, each with the address of all that it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from exegete.errors import ExegeteError
from exegete.metrics import metric
from exegete.studies.runs import explainers as explaining
from exegete.studies.runs import recipes as methods
from exegete.studies.runs.explainers import Chosen
from exegete.studies.runs.kinds import judge_model, train_model
from exegete.studies.runs.protocols import registry as protocols
from exegete.studies.runs.run import Run, place_of, titled
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
from exegete.studies.runs.study_sources import StudySources
from exegete.studies.spec.schema import JudgementPart, RunPart
from exegete.studies.spec.study_file import Study
from exegete.studies.spec.yaml_lines import Place as Line

Resolved: TypeAlias = tuple[dict[str, Any], list[Cell | None], dict[str, Any]]
_A_RUN = "the model of a run"


class CellBuilder:
    """Makes the cells of one study, those that others need first."""

    def __init__(self, study: Study, there: StudySources) -> None:
        self.study, self.file, self.sources = study, study.file, there
        self.metrics = {spec: metric(spec) for spec in self.file.metrics.values()}
        self.trained: dict[RunRef, Cell | None] = {}
        self.begun: set[RunRef] = set()
        self.found: list[Run] = []
        self._places = frozenset(run_refs(self.file))

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
        told = {**self.file.arguments, **data.arguments, **part.arguments}
        arguments = {name: value for name, value in told.items() if value is not None}
        parameters, needs, parts = self._parameters(place, (*line, "parameters"))
        source = start.source if part.model is None else _A_RUN
        config = methods.resolved(part.recipe, parameters, arguments, source) | {
            "kind": "train",
            "train": self.sources.datasets[data.train].address,
            "dev": self.sources.datasets[data.dev].address,
            "model": self.sources.start(place).address if other is None else _inside(other, part.model),
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
            titled(*place_of(place)),
            _keys([*needs, other]),
            found | {"model": start.at(place.seed), "arguments": others, "parts": parts},
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
                values[name] = {MODEL: self.sources.start(place).address}
                parts[name] = self.file.models[place.model].at(place.seed)
        for name, dataset in parts_named(given, DATASET).items():
            values[name], parts[name] = {DATASET: self.sources.datasets[dataset].address}, self.study.dataset(dataset)
        for name, model in parts_named(given, MODEL).items():
            address = self.sources.model(model, place.seed).address
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
            part, data = self.study.dataset(dataset, judged=True), self.sources.judged[dataset]
            for limit, few in _by_limit(judgement, chosen, data.rows).items():
                config = self._judged_by(judgement, place, few, options) | {
                    "metrics": metrics,
                    "model": self.sources.start(place).address if judged is None else _inside(judged, judgement.model),
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
                    titled(*place_of(place), name, title, dataset),
                    _keys([judged, *learned, *needed, *copies]),
                    {"model": self.file.models[place.model].at(place.seed), "dataset": part, "parts": parts},
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


def _inside(cell: Cell, part: RunPart | None) -> dict[str, str]:
    """A run's folder, or one inside it, by the run's address."""
    path = "" if part is None else part.path
    return {TRAINED: cell.key} | ({"path": path} if path else {})


def _keys(cells: Sequence[Cell | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.key for cell in cells if cell is not None))


def _facts(chosen: Any) -> Mapping[str, Any]:
    """A metric with all its parameters."""
    return {"name": chosen.name, **chosen.params}
