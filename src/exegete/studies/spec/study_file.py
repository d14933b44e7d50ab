"""From a file to a study: what it extends, its scale, variables, and every name it uses checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exegete.errors import ExegeteError, unknown
from exegete.studies.spec.checks import find_problems
from exegete.studies.spec.schema import StudyFile
from exegete.studies.spec.sources import resolve_dataset
from exegete.studies.spec.yaml_lines import Place, YamlDocument, get_part, merge_documents, read_yaml

SCALES = ("small", "paper", "trial")
TRIAL, TRIAL_SEEDS = "trial", [7]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Study:
    """A checked study file at one scale; `lines` says where each part of it stands.

    `reserved`: the datasets of the small scale, resolved, which a trial must not be judged on.
    """

    file: StudyFile
    scale: str
    lines: YamlDocument
    reserved: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """The study's name with its scale."""
        return f"{self.file.name}-{self.scale}"

    def dataset(self, name: str, *, judged: bool = False) -> dict[str, Any]:
        """A dataset, resolved; what a trial is judged on has no row of what the small scale is made of."""
        return resolve_dataset(self.file, name, self.reserved if judged else ())

    def error(self, place: Place, message: object) -> ExegeteError:
        """An error that points at the line of a place."""
        return ExegeteError(f"{self.lines.line_of(place)}: {'.'.join(map(str, place))}: {message}")


def load_study(path: str | Path, scale: str = "small") -> Study:
    """Reads and checks a study.

    `extends: FILE` puts the file on top of another one, relative to its own folder; `scales: {small: …, paper: …}` on
    top of both; null takes a key away. `${NAME}` and `${NAME:-default}` in texts are environment variables. The scale
    `trial` is on top of the small one, with a seed of its own, and judged on rows that the small one does not use.

    Raises:
        ExegeteError: a malformed file or an unknown name; with file and line.
    """
    whole = _read_with_base(Path(path), ())
    if not isinstance(whole.value, dict):
        raise ExegeteError(f"{whole.lines[()]}: expected keys and values, got {type(whole.value).__name__}")
    chosen = _apply_scale(whole, scale)
    chosen.value.setdefault("name", Path(path).stem)
    try:
        file = StudyFile.model_validate(chosen.value)
    except ValidationError as error:
        raise ExegeteError(format_first_problem(error, chosen)) from error
    small = load_study(path).file if scale == TRIAL else None
    study = Study(file, scale, chosen, [resolve_dataset(small, name) for name in small.datasets] if small else ())
    for place, problem in find_problems(file):
        raise study.error(place, problem) from problem
    return study


def _read_with_base(path: Path, above: tuple[Path, ...]) -> YamlDocument:
    """The file on top of what it extends, variables filled in; a scale's nulls stay, as they take away of the whole."""
    if path.resolve() in above:
        raise ExegeteError(f"{path} extends itself")
    found = read_yaml(path)
    found.value = _fill_variables(found, found.value, ())
    if not isinstance(found.value, dict) or "extends" not in found.value:
        return found
    base = found.value.pop("extends")
    if not isinstance(base, str):
        raise ExegeteError(f"{found.line_of(('extends',))}: expected a file to extend, got {base!r}")
    try:
        below = _read_with_base(path.parent / base, (*above, path.resolve()))
    except ExegeteError as error:
        if not (path.parent / base).exists():
            raise ExegeteError(f"{found.line_of(('extends',))}: there is no file {path.parent / base}") from error
        raise
    return merge_documents(below, found, keep_null=("scales",))


def _fill_variables(document: YamlDocument, value: Any, place: Place) -> Any:
    """The value with environment variables put into its texts."""
    if isinstance(value, dict):
        return {key: _fill_variables(document, inner, (*place, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill_variables(document, inner, (*place, index)) for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = os.environ.get(name) or default
        if found is None:
            raise ExegeteError(f"{document.line_of(place)}: the environment variable {name} is not set")
        return found

    return VARIABLE.sub(variable, value)


def _apply_scale(whole: YamlDocument, scale: str) -> YamlDocument:
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if "scales" not in whole.value:
        return whole
    scales = get_part(whole, "scales")
    if not isinstance(scales.value, dict) or set(scales.value) - set(SCALES):
        raise ExegeteError(f"{scales.lines[()]}: scales: expected {', '.join(SCALES[:-1])} and {SCALES[-1]}")
    at = whole.lines[()]
    found = merge_documents(whole, YamlDocument({"scales": None}, {(): at, ("scales",): scales.lines[()]}))
    for name in ("small", TRIAL) if scale == TRIAL else (scale,):
        if name == TRIAL:
            found = merge_documents(found, YamlDocument({"seeds": TRIAL_SEEDS}, {(): at, ("seeds",): at}))
        if scales.value.get(name):
            found = merge_documents(found, get_part(scales, name))
    return found


def format_first_problem(error: ValidationError, document: YamlDocument) -> str:
    """The first thing wrong, with its line; how many more there are."""
    errors = error.errors()
    place = tuple(each for each in errors[0]["loc"] if isinstance(each, str | int))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    got = "" if errors[0]["type"] in ("missing", "extra_forbidden") else f", got {errors[0]['input']!r:.60}"
    return f"{document.line_of(place)}: {'.'.join(map(str, place))}: {errors[0]['msg']}{got}{more}"
