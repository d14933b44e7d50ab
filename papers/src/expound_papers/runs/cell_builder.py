"""Builds the cells of a study: the configuration of each training and judgement, and the cells that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from expound.errors import ExpoundError
from expound.metrics import metric
from expound_papers.protocols import registry as protocols
from expound_papers.runs.execution import judge_model, train_model
from expound_papers.runs.store import Cell
from expound_papers.runs.study_run import StudyRun, join_title, place_names
from expound_papers.runs.study_sources import StudySources
from expound_papers.spec import recipe_configs
from expound_papers.spec.explainer_configs import ExplainerConfig, make_explainer_config
from expound_papers.spec.run_ref import (
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
from expound_papers.spec.schema import JudgementPart, RunPart
from expound_papers.spec.study_file import Study
from expound_papers.spec.yaml_lines import Place

Resolved: TypeAlias = tuple[dict[str, Any], list[Cell | None], dict[str, Any]]
"""Values with addresses in place of runs, datasets and models; the runs' cells; where the datasets and models are."""
MODEL_OF_A_RUN = "the model of a run"


class CellBuilder:
    """Builds the runs of one study, each after those that it needs.

    `sources` has the datasets and models of the study as they are on this machine. A `RunRef` names a training run of
    the grid; a `Place` is a line of the study file, for errors.
    """

    def __init__(self, study: Study, sources: StudySources) -> None:
        self.study, self.file, self.sources = study, study.file, sources
        self.metrics = {spec: metric(spec) for spec in self.file.metrics.values()}
        self.trained: dict[RunRef, Cell | None] = {}
        self.started: set[RunRef] = set()
        self.runs: list[StudyRun] = []
        self._grid = frozenset(list_run_refs(self.file))

    def build_runs(self) -> list[StudyRun]:
        """Return all runs of the study: its trainings and their judgements.

        Raises:
            ExpoundError: a run needs itself, or a run that does not exist; with file and line.
        """
        for ref in list_run_refs(self.file):
            trained = self._training_cell(ref)
            for name, judgement in self.file.judgements.items():
                if _is_judged(judgement, ref):
                    self._add_judgements(name, judgement, ref, trained)
        return self.runs

    def _training_cell(self, ref: RunRef) -> Cell | None:
        """Return the cell that trains the model of `ref`; None if the grid's model is judged as it is."""
        if ref not in self.trained:
            # A run that is asked for while its own dependencies are built depends on itself.
            if ref in self.started:
                raise self.study.error(("recipes", ref.recipe), f"{ref.recipe} needs itself")
            self.started.add(ref)
            self.trained[ref] = self._make_training_cell(ref)
        return self.trained[ref]

    def _make_training_cell(self, ref: RunRef) -> Cell | None:
        part, start, place = self.file.recipes[ref.recipe], self.file.models[ref.model], ("recipes", ref.recipe)
        other = None
        if part.model is not None:
            other = self._model_cell(part.model, ref, (*place, "model"))
        if part.recipe == recipe_configs.NONE:
            return other
        data = self.file.training[ref.training]
        # The file's arguments are the weakest, then those of the training data, then the recipe's; null removes one.
        arguments = {**self.file.arguments, **data.arguments, **part.arguments}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        parameters, needs, parts = self._resolve_parameters(ref, (*place, "parameters"))
        source = start.source if part.model is None else MODEL_OF_A_RUN
        # The names in a configuration decide the cell's address: renaming one would orphan every finished cell.
        config = recipe_configs.resolve_config(part.recipe, parameters, arguments, source, self.file.preset) | {
            "kind": "train",
            "train": self.sources.datasets[data.train].address,
            "dev": self.sources.datasets[data.dev].address,
            "model": self._model_address(ref, other, part.model),
            "max_length": start.max_length,
            "early_stopping_patience": part.early_stopping_patience,
            "seed": ref.seed,
        }
        # Keys that came later are left out at their default, so that older cells keep their addresses.
        if part.options:
            config["options"] = part.options
        if other is None and start.prompt is not None:
            config["prompt"] = self._prompt_config(ref)
        sources = {"train": self.study.dataset(data.train), "dev": self.study.dataset(data.dev)}
        # Arguments that the outcome does not depend on, as the number of data loader workers, are no part of the key.
        others = {key: value for key, value in arguments.items() if key not in config["arguments"]}
        cell = Cell(
            config,
            train_model,
            join_title(*place_names(ref)),
            _unique_keys([*needs, other]),
            {**sources, "model": start.source_for_seed(ref.seed), "arguments": others, "parts": parts},
        )
        self.runs.append(StudyRun(cell, *ref))
        return cell

    def _prompt_config(self, ref: RunRef) -> dict[str, Any]:
        """Return the prompt of a model as JSON. Raises ExpoundError if the recipe would train the prompted model."""
        recipe, prompt = self.file.recipes[ref.recipe].recipe, self.file.models[ref.model].prompt
        if recipe not in recipe_configs.EXPLAINING:
            explaining = ", ".join(recipe_configs.EXPLAINING)
            message = f"a prompted model stays as it is: {recipe} trains it ({explaining} do not)"
            raise self.study.error(("recipes", ref.recipe), message)
        assert prompt is not None
        return prompt.model_dump()

    def _resolve_parameters(self, ref: RunRef, place: Place) -> Resolved:
        """Resolve a recipe's parameters, including those whose value is a figure of other runs."""
        parameters = self.file.recipes[ref.recipe].parameters
        values, needs, parts = self._resolve_values(parameters, ref, place)
        for name, value in recipe_configs.find_values_from_runs(parameters).items():
            other = str(value[recipe_configs.FROM])
            runs = []
            for seed in seeds_of(self.file, other):
                runs.append(self._required_cell(RunPart(run=other, seed=seed), ref, (*place, name)))
            options = {"metric": value["metric"], "of": value.get("of"), "times": value.get("times", 1.0)}
            values[name] = {"runs": list(_unique_keys(runs)), **options}
            needs += runs
        return values, needs, parts

    def _resolve_values(self, given: Mapping[str, Any], ref: RunRef, place: Place) -> Resolved:
        """Replace the runs, datasets and models that values name by their addresses."""
        values, needs, parts = dict(given), list[Cell | None](), dict[str, Any]()
        for name, part in find_run_parts(given).items():
            cell = self._model_cell(part, ref, (*place, name))
            if cell is not None:
                values[name] = _folder_address(cell, part)
                needs.append(cell)
            else:
                values[name] = {MODEL: self.sources.start_model(ref).address}
                parts[name] = self.file.models[ref.model].source_for_seed(ref.seed)
        for name, dataset in find_named_parts(given, DATASET).items():
            values[name], parts[name] = {DATASET: self.sources.datasets[dataset].address}, self.study.dataset(dataset)
        for name, model in find_named_parts(given, MODEL).items():
            address = self.sources.model(model, ref.seed).address
            values[name], parts[name] = {MODEL: address}, self.file.models[model].source_for_seed(ref.seed)
        return values, needs, parts

    def _required_cell(self, part: RunPart, ref: RunRef, place: Place) -> Cell:
        """Return the training cell that `part` names for the run `ref`. Raises ExpoundError if it does not exist."""
        try:
            needed = resolve_run(self.file, part, ref)
        except ExpoundError as error:
            raise self.study.error(place, error) from error
        cell = self._training_cell(needed)
        if cell is None:
            raise self.study.error(place, f"{part.run} trains nothing, so it has no folder")
        return cell

    def _model_cell(self, part: RunPart, ref: RunRef, place: Place) -> Cell | None:
        """Return the training cell that `part` names; None if its recipe takes the grid's model as it is."""
        own = RunRef(ref.training, ref.model, part.run, ref.seed)
        if part == RunPart(run=part.run) and own in self._grid and self._training_cell(own) is None:
            return None
        return self._required_cell(part, ref, place)

    def _model_address(self, ref: RunRef, cell: Cell | None, part: RunPart | None) -> Mapping[str, Any]:
        """Return the address of the grid's model, or of the folder that `part` names in a cell."""
        if cell is None:
            return self.sources.start_model(ref).address
        return _folder_address(cell, part)

    def _add_judgements(self, name: str, judgement: JudgementPart, ref: RunRef, trained: Cell | None) -> None:
        """Add the judgements of one training run: a run for each dataset and each limit of explainers."""
        place: Place = ("judgements", name)
        judged = trained
        if judgement.model is not None:
            judged = self._model_cell(judgement.model, ref, (*place, "model"))
        explainers, learned = self._explainer_configs(judgement, ref, trained)
        options, needs, parts = self._resolve_values(judgement.options, ref, (*place, "options"))
        metrics, metric_needs = self._metric_configs(judgement, ref)
        source = self.file.models[ref.model].source_for_seed(ref.seed)
        for dataset in judgement.datasets:
            part, data = self.study.dataset(dataset, judged=True), self.sources.judged[dataset]
            for limit, limited in _group_by_limit(judgement, explainers, data.rows).items():
                config = self._judgement_config(judgement, ref, limited, options) | {
                    "metrics": metrics,
                    "model": self._model_address(ref, judged, judgement.model),
                    "dataset": data.address,
                }
                config |= self._model_options(ref, judged, explained=bool(explainers))
                title = [*place_names(ref), name]
                if limit:
                    config["limit"] = limit
                    title.append(f"first {limit}")
                cell = Cell(
                    config,
                    judge_model,
                    join_title(*title, dataset),
                    _unique_keys([judged, *learned, *needs, *metric_needs]),
                    {"model": source, "dataset": part, "parts": parts},
                )
                specs = {key: explainer.spec for key, explainer in limited.items()}
                self.runs.append(StudyRun(cell, *ref, dataset, name, specs, partly=limit > 0))

    def _model_options(self, ref: RunRef, judged: Cell | None, *, explained: bool) -> dict[str, Any]:
        """Return how the judged model is loaded: its prompt, and full attention if it is explained."""
        model, options = self.file.models[ref.model], dict[str, Any]()
        if judged is None and model.prompt is not None:
            options["prompt"] = model.prompt.model_dump()
        if explained and model.full_attention:
            options["full_attention"] = True
        return options

    def _judgement_config(
        self,
        judgement: JudgementPart,
        ref: RunRef,
        explainers: Mapping[str, ExplainerConfig],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return a judgement's configuration without its metrics, model and data."""
        config: dict[str, Any] = {
            "kind": "judge",
            "explainers": {explainer.spec: explainer.facts for explainer in explainers.values()},
            "target": judgement.target,
            "keep_attributions": judgement.keep_attributions,
            "layers": judgement.layers,
            "seed": ref.seed,
        }
        if judgement.special_tokens:
            config["special_tokens"] = True
        if judgement.unit is not None:
            config["unit"] = judgement.unit
        if judgement.protocol is not None:
            all_options = protocols.add_default_options(judgement.protocol, options)
            config["protocol"] = {"name": judgement.protocol, "options": all_options}
        return config

    def _metric_configs(self, judgement: JudgementPart, ref: RunRef) -> tuple[dict[str, Any], list[Cell]]:
        """Return a judgement's metrics with all parameters, by spec, and the cells that their specs name."""
        configs, needs = dict[str, Any](), list[Cell]()
        for name in judgement.metrics or ():
            spec, runs = self.file.metrics[name], dict[str, Cell]()
            for recipe in RUN_IN_SPEC.findall(spec):
                runs[recipe] = self._required_cell(RunPart(run=recipe), ref, ("metrics", name))
            configs[spec] = {"name": self.metrics[spec].name, **self.metrics[spec].params}
            if runs:
                configs[spec]["runs"] = {recipe: cell.key for recipe, cell in runs.items()}
            needs += runs.values()
        return configs, needs

    def _explainer_configs(
        self, judgement: JudgementPart, ref: RunRef, trained: Cell | None
    ) -> tuple[dict[str, ExplainerConfig], list[Cell | None]]:
        """Return a judgement's explainers by name, and the cells that learned ones come from."""
        configs, needs = dict[str, ExplainerConfig](), list[Cell | None]()
        for name in judgement.explainers or ():
            part, cell = self.file.explainers[name], None
            if part.source_run is not None:
                cell = self._required_cell(part.source_run, ref, ("explainers", name))
            elif OWN_RUN in part.spec:
                cell = trained
                if cell is None:
                    message = f"comes from the judged run, but {ref.recipe} trains nothing: name a run, or recipes"
                    raise self.study.error(("explainers", name), message)
            configs[name] = make_explainer_config(part, None if cell is None else cell.key)
            needs.append(cell)
        return configs, needs


def _is_judged(judgement: JudgementPart, ref: RunRef) -> bool:
    """Return whether a judgement is about a training run; without names it is about all of them."""
    limits = ((judgement.recipes, ref.recipe), (judgement.trainings, ref.training), (judgement.models, ref.model))
    return all(names is None or name in names for names, name in limits)


def _group_by_limit(
    judgement: JudgementPart, explainers: Mapping[str, ExplainerConfig], rows: int
) -> dict[int, dict[str, ExplainerConfig]]:
    """Group explainers by the number of examples that they are judged on; 0 is all examples and always exists."""
    # The run on all examples gives the model's own performance, even if every explainer has a limit.
    groups: dict[int, dict[str, ExplainerConfig]] = {0: {}}
    for name, explainer in explainers.items():
        limit = judgement.limits.get(name, rows)
        if limit >= rows:
            limit = 0
        groups.setdefault(limit, {})[name] = explainer
    return groups


def _folder_address(cell: Cell, part: RunPart | None) -> dict[str, str]:
    """Return the address of a cell's folder, or of the folder inside it that `part` names."""
    address = {TRAINED: cell.key}
    if part is not None and part.path:
        address["path"] = part.path
    return address


def _unique_keys(cells: Sequence[Cell | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.key for cell in cells if cell is not None))
