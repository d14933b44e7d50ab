"""Checks of the names in a study file: parts of the library with their parameters, and parts that the file declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from expound.data.load import open_reader
from expound.errors import ExpoundError, unknown
from expound.metrics import metric
from expound_papers.protocols.registry import check_protocol, uses_explainers
from expound_papers.similarity import get_measure
from expound_papers.spec.explainer_configs import NONE, check_explainer
from expound_papers.spec.recipe_configs import check_recipe, check_run_options
from expound_papers.spec.run_ref import DATASET, MODEL, RUN_IN_SPEC, find_named_parts, find_run_parts
from expound_papers.spec.schema import RunPart, StudyFile
from expound_papers.spec.sources import resolve_dataset
from expound_papers.spec.yaml_lines import Place

FIELDS = ("training", "model", "recipe", "dataset", "judgement", "explainer", "metric")


def find_problems(file: StudyFile) -> Iterator[tuple[Place, ExpoundError]]:
    """Yield each error of a file that fits the schema, with its place in the file."""
    for place, check in _library_checks(file):
        try:
            check()
        except ExpoundError as error:
            yield place, error
    for place, what, names, valid in _references(file):
        for index, name in enumerate(names):
            if name not in valid:
                yield (*place, index), unknown(what, name, valid)
    if not file.training and {recipe.recipe for recipe in file.recipes.values()} != {NONE}:
        yield ("recipes",), ExpoundError("no data to train on: name datasets under 'training'")
    yield from _find_conflicts(file)


def _find_conflicts(file: StudyFile) -> Iterator[tuple[Place, ExpoundError]]:
    """Yield errors of parts that are valid alone but not together."""
    for name in file.datasets:
        try:
            resolve_dataset(file, name)
        except ExpoundError as error:
            yield ("datasets", name, "exclude"), error
    for name, judgement in file.judgements.items():
        if uses_explainers(judgement.protocol):
            if judgement.limits or judgement.metrics or not judgement.explainers:
                message = f"{judgement.protocol} runs the explainers itself: name some, and neither metrics nor limits"
                yield ("judgements", name, "protocol"), ExpoundError(message)
        elif NONE in [file.explainers[each].spec for each in judgement.explainers or ()]:
            yield ("judgements", name, "explainers"), ExpoundError("the explainer none is for protocols with students")
    for name, table in file.tables.items():
        if table.significance and (table.over or table.gain):
            message = "figures over several fields, or relative to others, have no test: leave one of them out"
            yield ("tables", name, "significance"), ExpoundError(message)


def _library_checks(file: StudyFile) -> Iterator[tuple[Place, Callable[[], object]]]:
    """Yield each place that names a part of the library, with a function that raises ExpoundError for a wrong one."""
    for name, data in file.datasets.items():
        yield ("datasets", name, "spec"), partial(open_reader, data.spec, seed=data.seed, **data.options)
    for name, each in file.explainers.items():
        yield ("explainers", name), partial(check_explainer, each)
    for name, spec in file.metrics.items():
        yield ("metrics", name), partial(metric, spec)
    for name, recipe in file.recipes.items():
        yield ("recipes", name), partial(check_recipe, recipe.recipe, recipe.parameters, file.recipes)
        yield ("recipes", name, "options"), partial(check_run_options, recipe.options)
    for name, judgement in file.judgements.items():
        yield ("judgements", name, "options"), partial(find_run_parts, judgement.options)
        if judgement.protocol is not None:
            yield ("judgements", name, "protocol"), partial(check_protocol, judgement.protocol, judgement.options)
    for name, comparison in file.comparisons.items():
        yield ("comparisons", name, "measure"), partial(get_measure, comparison.measure)
    for name, figure in file.figures.items():
        yield ("figures", name, "measure"), partial(get_measure, figure.measure)


def _references(file: StudyFile) -> Iterator[tuple[Place, str, Iterable[str], Iterable[str]]]:
    """Yield each place that names parts of the file: the kind of part, the names, and the valid names."""
    yield from _references_of_data(file)
    for name, explainer in file.explainers.items():
        yield from _references_of_run(file, ("explainers", name), explainer.source_run)
    for name, recipe in file.recipes.items():
        yield ("recipes", name, "trainings"), "training", recipe.trainings or (), file.training
        yield ("recipes", name, "models"), "model", recipe.models or (), file.models
        yield from _references_of_run(file, ("recipes", name, "model"), recipe.model)
        yield from _references_of_values(file, ("recipes", name, "parameters"), recipe.parameters)
    for name, judgement in file.judgements.items():
        for key in ("datasets", "explainers", "metrics", "recipes", "models"):
            yield ("judgements", name, key), key[:-1], getattr(judgement, key) or (), getattr(file, key)
        yield ("judgements", name, "trainings"), "training", judgement.trainings or (), file.training
        yield ("judgements", name, "limits"), "explainer", judgement.limits, judgement.explainers or ()
        yield from _references_of_run(file, ("judgements", name, "model"), judgement.model)
        yield from _references_of_values(file, ("judgements", name, "options"), judgement.options)
        for key, named in find_run_parts(judgement.options).items():
            yield from _references_of_run(file, ("judgements", name, "options", key), named)
    for name, comparison in file.comparisons.items():
        yield ("comparisons", name, "judgement"), "judgement", [comparison.judgement], file.judgements
        yield ("comparisons", name, "against"), "recipe", _as_list(comparison.against), file.recipes
    yield from _references_of_outputs(file)


def _references_of_data(file: StudyFile) -> Iterator[tuple[Place, str, Iterable[str], Iterable[str]]]:
    """Yield the same as `_references` for metrics, datasets and training data."""
    for name, spec in file.metrics.items():
        yield ("metrics", name), "recipe", RUN_IN_SPEC.findall(spec), file.recipes
    for name, data in file.datasets.items():
        yield ("datasets", name, "exclude"), "dataset", data.exclude, file.datasets
        if data.longest is not None:
            yield ("datasets", name, "longest", "model"), "model", _as_list(data.longest.model), file.models
    for name, training in file.training.items():
        yield ("training", name, "train"), "dataset", [training.train], file.datasets
        yield ("training", name, "dev"), "dataset", [training.dev], file.datasets


def _references_of_outputs(file: StudyFile) -> Iterator[tuple[Place, str, Iterable[str], Iterable[str]]]:
    """Yield the same as `_references` for tables and figures."""
    for name, table in file.tables.items():
        for key in ("rows", "columns", "over"):
            yield ("tables", name, key), "field", getattr(table, key), FIELDS
        for key, row in table.gain.items():
            rows = [*file.recipes, *file.explainers, *file.training, *file.models]
            yield ("tables", name, "gain", key), "recipe, explainer, training or model", [row], rows
        yield from _references_of_filter(file, ("tables", name, "where"), table.where)
    for name, figure in file.figures.items():
        yield from _references_of_filter(file, ("figures", name, "where"), figure.where)
        yield ("figures", name, "table"), "table", _as_list(figure.table), file.tables
        for key in ("x", "y"):
            for index, axis in enumerate(getattr(figure, key)):
                place = ("figures", name, key, index)
                yield (*place, "dataset"), "dataset", _as_list(axis.dataset), file.datasets
                yield (*place, "explainer"), "explainer", _as_list(axis.explainer), file.explainers


def _references_of_run(file: StudyFile, place: Place, part: RunPart | None) -> Iterator[Any]:
    """Yield the recipe, training and model that a reference to another run names."""
    if part is not None:
        yield (*place, "run"), "recipe", [part.run], file.recipes
        yield (*place, "training"), "training", _as_list(part.training), file.training
        yield (*place, "model"), "model", _as_list(part.model), file.models


def _references_of_values(file: StudyFile, place: Place, values: dict[str, Any]) -> Iterator[Any]:
    """Yield the datasets and models that values name."""
    for kind, valid in ((DATASET, file.datasets), (MODEL, file.models)):
        for key, name in find_named_parts(values, kind).items():
            yield (*place, key), kind, [name], valid


def _as_list(name: str | None) -> list[str]:
    return [name] if name else []


def _references_of_filter(file: StudyFile, place: Place, where: dict[str, list[str]]) -> Iterator[Any]:
    declared = {"model": file.models, "recipe": file.recipes, "dataset": file.datasets, "explainer": file.explainers}
    declared |= {"judgement": file.judgements, "training": file.training}
    yield place, "field", where, FIELDS
    for key, names in where.items():
        if key in declared:
            yield (*place, key), key, names, declared[key]
