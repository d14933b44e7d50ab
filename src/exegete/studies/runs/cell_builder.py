"""The cells of a study's runs, each with the address of all that it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from exegete.errors import ExegeteError
from exegete.metrics import metric
from exegete.studies.protocols import registry as protocols
from exegete.studies.runs.execution import judge_model, train_model
from exegete.studies.runs.store import Cell
from exegete.studies.runs.study_run import StudyRun, join_title, place_names
from exegete.studies.runs.study_sources import StudySources
from exegete.studies.spec import recipe_configs
from exegete.studies.spec.explainer_configs import ExplainerConfig, make_explainer_config
from exegete.studies.spec.run_ref import (
    DATASET,
    MODEL,
    OWN_RUN,
    RUN_IN_SPEC,
    TRAINED,
    RunRef,
    find_named_parts,
    find_run_parts,
    list_run_refs,
    resolve_run,
    seeds_of,
)
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
        self.started: set[RunRef] = set()
        self.runs: list[StudyRun] = []
        self._places = frozenset(list_run_refs(self.file))

    def build_runs(self) -> list[StudyRun]:
        """All runs of the study: its trainings and their judgements."""
        for place in list_run_refs(self.file):
            trained = self._training_cell(place)
            for name, judgement in self.file.judgements.items():
                if _is_judged(judgement, place):
                    self._add_judgements(name, judgement, place, trained)
        return self.runs

    def _training_cell(self, place: RunRef) -> Cell | None:
        """The training run of a place; that of another place where nothing is trained but a run's model taken."""
        if place not in self.trained:
            if place in self.started:
                raise self.study.error(("recipes", place.recipe), f"{place.recipe} needs itself")
            self.started.add(place)
            self.trained[place] = self._make_training_cell(place)
        return self.trained[place]

    def _make_training_cell(self, place: RunRef) -> Cell | None:
        part, start = self.file.recipes[place.recipe], self.file.models[place.model]
        line = ("recipes", place.recipe)
        other = None if part.model is None else self._model_cell(part.model, place, (*line, "model"))
        if part.recipe == recipe_configs.NONE:
            return other
        data = self.file.training[place.training]
        told = {**self.file.arguments, **data.arguments, **part.arguments}
        arguments = {name: value for name, value in told.items() if value is not None}
        parameters, needs, parts = self._resolve_parameters(place, (*line, "parameters"))
        source = start.source if part.model is None else _A_RUN
        config = recipe_configs.resolve_config(part.recipe, parameters, arguments, source) | {
            "kind": "train",
            "train": self.sources.datasets[data.train].address,
            "dev": self.sources.datasets[data.dev].address,
            "model": self.sources.start_model(place).address if other is None else _folder_address(other, part.model),
            "max_length": start.max_length,
            "early_stopping_patience": part.early_stopping_patience,
            "seed": place.seed,
        }
        config |= {"options": part.options} if part.options else {}
        if other is None and start.prompt is not None:
            config["prompt"] = start.prompt.model_dump()
            if part.recipe not in recipe_configs.EXPLAINING:
                explaining = ", ".join(recipe_configs.EXPLAINING)
                message = f"a prompted model is not trained: {part.recipe} trains it, only {explaining} do not"
                raise self.study.error(line, message)
        found = {name: self.study.dataset(getattr(data, name)) for name in ("train", "dev")}
        others = {key: value for key, value in arguments.items() if key not in config["arguments"]}
        cell = Cell(
            config,
            train_model,
            join_title(*place_names(place)),
            _unique_keys([*needs, other]),
            found | {"model": start.source_for_seed(place.seed), "arguments": others, "parts": parts},
        )
        self.runs.append(StudyRun(cell, *place))
        return cell

    def _resolve_parameters(self, place: RunRef, line: Line) -> Resolved:
        """The recipe's parameters, those that other runs give by these runs' addresses; these runs; where parts are."""
        given = self.file.recipes[place.recipe].parameters
        parameters, needs, parts = self._resolve_values(given, place, line)
        for name, value in recipe_configs.find_values_from_runs(given).items():
            other = str(value[recipe_configs.FROM])
            runs = [
                self._required_cell(RunPart(run=other, seed=seed), place, (*line, name))
                for seed in seeds_of(self.file, other)
            ]
            parameters[name] = {
                "runs": list(_unique_keys(runs)),
                "metric": value["metric"],
                "of": value.get("of"),
                "times": value.get("times", 1.0),
            }
            needs += runs
        return parameters, needs, parts

    def _resolve_values(self, given: Mapping[str, Any], place: RunRef, line: Line) -> Resolved:
        """The values, runs, datasets and models among them by their addresses; these runs; and where the others are."""
        values, needs, parts = dict(given), list[Cell | None](), dict[str, Any]()
        for name, part in find_run_parts(given).items():
            cell = self._model_cell(part, place, (*line, name))
            if cell is not None:
                values[name] = _folder_address(cell, part)
                needs.append(cell)
            else:
                values[name] = {MODEL: self.sources.start_model(place).address}
                parts[name] = self.file.models[place.model].source_for_seed(place.seed)
        for name, dataset in find_named_parts(given, DATASET).items():
            values[name], parts[name] = {DATASET: self.sources.datasets[dataset].address}, self.study.dataset(dataset)
        for name, model in find_named_parts(given, MODEL).items():
            address = self.sources.model(model, place.seed).address
            values[name], parts[name] = {MODEL: address}, self.file.models[model].source_for_seed(place.seed)
        return values, needs, parts

    def _required_cell(self, part: RunPart, place: RunRef, line: Line) -> Cell:
        """The run that a part means."""
        try:
            needed = resolve_run(self.file, part, place)
        except ExegeteError as error:
            raise self.study.error(line, error) from error
        cell = self._training_cell(needed)
        if cell is None:
            raise self.study.error(line, f"{part.run} trains nothing, so it has no folder")
        return cell

    def _model_cell(self, part: RunPart, place: RunRef, line: Line) -> Cell | None:
        """The run that a part means; None where its recipe takes the grid's model as it is."""
        own = RunRef(place.training, place.model, part.run, place.seed)
        taken = part == RunPart(run=part.run) and own in self._places and self._training_cell(own) is None
        return None if taken else self._required_cell(part, place, line)

    def _add_judgements(self, name: str, judgement: JudgementPart, place: RunRef, trained: Cell | None) -> None:
        """Adds the runs of a judgement of one place in the grid: one for each dataset and limit of its explainers."""
        line: Line = ("judgements", name)
        judged = trained if judgement.model is None else self._model_cell(judgement.model, place, (*line, "model"))
        chosen, learned = self._explainer_configs(judgement, place, trained)
        options, needed, parts = self._resolve_values(judgement.options, place, (*line, "options"))
        metrics, copies = self._metric_configs(judgement, place)
        source = self.file.models[place.model].source_for_seed(place.seed)
        for dataset in judgement.datasets:
            part, data = self.study.dataset(dataset, judged=True), self.sources.judged[dataset]
            for limit, few in _group_by_limit(judgement, chosen, data.rows).items():
                config = self._judgement_config(judgement, place, few, options) | {
                    "metrics": metrics,
                    "model": self.sources.start_model(place).address
                    if judged is None
                    else _folder_address(judged, judgement.model),
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
                    join_title(*place_names(place), name, title, dataset),
                    _unique_keys([judged, *learned, *needed, *copies]),
                    {
                        "model": source,
                        "dataset": part,
                        "parts": parts,
                    },
                )
                specs = {key: each.spec for key, each in few.items()}
                self.runs.append(StudyRun(cell, *place, dataset, name, specs, partly=limit > 0))

    def _judgement_config(
        self, judgement: JudgementPart, place: RunRef, chosen: Mapping[str, ExplainerConfig], options: Mapping[str, Any]
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
            known = protocols.add_default_options(judgement.protocol, options)
            config["protocol"] = {"name": judgement.protocol, "options": known}
        return config

    def _metric_configs(self, judgement: JudgementPart, place: RunRef) -> tuple[dict[str, Any], list[Cell]]:
        """A judgement's metrics with all their parameters by spec, and the runs whose folders are among these."""
        found, needs = dict[str, Any](), list[Cell]()
        for name in judgement.metrics or ():
            spec = self.file.metrics[name]
            runs = {
                each: self._required_cell(RunPart(run=each), place, ("metrics", name))
                for each in RUN_IN_SPEC.findall(spec)
            }
            named = {"runs": {recipe: cell.key for recipe, cell in runs.items()}} if runs else {}
            found[spec] = {**_metric_config(self.metrics[spec]), **named}
            needs += runs.values()
        return found, needs

    def _explainer_configs(
        self, judgement: JudgementPart, place: RunRef, trained: Cell | None
    ) -> tuple[dict[str, ExplainerConfig], list[Cell | None]]:
        """A judgement's explainers of a run by name, and the runs in which learned ones are."""
        found, needs = dict[str, ExplainerConfig](), list[Cell | None]()
        for name in judgement.explainers or ():
            part, cell = self.file.explainers[name], None
            if part.source_run is not None:
                cell = self._required_cell(part.source_run, place, ("explainers", name))
            elif OWN_RUN in part.spec:
                cell = trained
                if cell is None:
                    message = f"comes from the judged run, but {place.recipe} trains nothing: name a run, or recipes"
                    raise self.study.error(("explainers", name), message)
            found[name] = make_explainer_config(part, None if cell is None else cell.key)
            needs.append(cell)
        return found, needs


def _is_judged(judgement: JudgementPart, place: RunRef) -> bool:
    """Whether a judgement is about the runs of a place."""
    limits = ((judgement.recipes, place.recipe), (judgement.trainings, place.training), (judgement.models, place.model))
    return all(names is None or name in names for names, name in limits)


def _group_by_limit(
    judgement: JudgementPart, chosen: Mapping[str, ExplainerConfig], rows: int
) -> dict[int, dict[str, ExplainerConfig]]:
    """The explainers by the number of examples that they are judged on; 0 for all, which is always there."""
    found: dict[int, dict[str, ExplainerConfig]] = {0: {}}
    for name, each in chosen.items():
        limit = judgement.limits.get(name, rows)
        found.setdefault(limit if limit < rows else 0, {})[name] = each
    return found


def _folder_address(cell: Cell, part: RunPart | None) -> dict[str, str]:
    """A run's folder, or one inside it, by the run's address."""
    path = "" if part is None else part.path
    return {TRAINED: cell.key} | ({"path": path} if path else {})


def _unique_keys(cells: Sequence[Cell | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.key for cell in cells if cell is not None))


def _metric_config(chosen: Any) -> Mapping[str, Any]:
    """A metric with all its parameters."""
    return {"name": chosen.name, **chosen.params}
