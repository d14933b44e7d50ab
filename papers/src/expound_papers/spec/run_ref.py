"""References to runs of the grid: where each recipe is run, and which run `{run: RECIPE}` means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from pydantic import ValidationError

from expound.errors import ExpoundError, check_choice, unknown
from expound_papers.spec.schema import RunPart, StudyFile

RUN, TRAINED, DATASET, MODEL = "run", "trained", "dataset", "model"
OWN_RUN = "{run}"


RUN_IN_SPEC = re.compile(r"\{run:([^{}]+)\}")
"""A reference in a metric's spec to the folder of a run, by its recipe."""


class RunRef(NamedTuple):
    """One training run of the grid, by names of the study file."""

    training: str
    model: str
    recipe: str
    seed: int


def find_run_parts(values: Mapping[str, Any]) -> dict[str, RunPart]:
    """Return the values that refer to other runs, as `{run: RECIPE}`.

    Raises:
        ExpoundError: a reference with an unknown key.
    """
    found = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and RUN in value:
            try:
                found[key] = RunPart.model_validate(value)
            except ValidationError as error:
                expected = "{run: RECIPE, training: NAME, model: NAME, seed: NUMBER, path: FOLDER}"
                raise ExpoundError(f"{key}: expected {expected}, got {dict(value)}") from error
    return found


def find_named_parts(values: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the names in values that refer to a dataset or model of the file, as `{dataset: NAME}`, by key."""
    return {key: value[kind] for key, value in values.items() if isinstance(value, Mapping) and [*value] == [kind]}


def list_run_refs(file: StudyFile) -> Iterator[RunRef]:
    """Yield all training runs of the grid; the seed varies fastest, then the recipe, the model and the training."""
    for training, model, recipe in product(file.training or [""], file.models, file.recipes):
        if training in trainings_of(file, recipe) and model in models_of(file, recipe):
            for seed in seeds_of(file, recipe):
                yield RunRef(training, model, recipe, seed)


def trainings_of(file: StudyFile, recipe: str) -> Sequence[str]:
    """Return the names of the training data of a recipe; one empty name in a study without trainings."""
    return file.recipes[recipe].trainings or list(file.training) or [""]


def models_of(file: StudyFile, recipe: str) -> Sequence[str]:
    """Return the names of the models that a recipe starts from."""
    return file.recipes[recipe].models or list(file.models)


def seeds_of(file: StudyFile, recipe: str) -> Sequence[int]:
    """Return the seeds of a recipe."""
    return file.recipes[recipe].seeds or file.seeds


def resolve_run(file: StudyFile, part: RunPart, at: RunRef) -> RunRef:
    """Return the run that `part` refers to in the run `at`.

    Its training, model and seed are those that `part` names, or else those of `at`, or else the only ones that the
    recipe has.

    Raises:
        ExpoundError: an unknown recipe or name, or several candidates.
    """
    check_choice("recipe", part.run, file.recipes)
    training = _resolve_field("training", trainings_of(file, part.run), part, at)
    model = _resolve_field("model", models_of(file, part.run), part, at)
    return RunRef(training, model, part.run, _resolve_field("seed", seeds_of(file, part.run), part, at))


def _resolve_field(name: str, options: Sequence[Any], part: RunPart, at: RunRef) -> Any:
    given, same = getattr(part, name), getattr(at, name)
    if given is not None:
        if given not in options:
            raise unknown(f"{name} of {part.run}", str(given), map(str, options))
        return given
    if same in options:
        return same
    if len(options) == 1:
        return options[0]
    there = ", ".join(map(str, options))
    raise ExpoundError(f"{part.run} is not run with the {name} {same!r}: name one of its own ({there}) as '{name}'")
