"""Reads study files: what a file extends, its scale, environment variables, and checks of every name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from expound.errors import ExpoundError, check_choice
from expound_papers.spec.checks import find_problems
from expound_papers.spec.schema import StudyFile
from expound_papers.spec.sources import resolve_dataset
from expound_papers.spec.yaml_lines import Place, YamlDocument, get_part, merge_documents, read_yaml

SCALES = ("small", "paper", "trial")
TRIAL, TRIAL_SEEDS = "trial", [7]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Study:
    """A checked study file at one scale.

    `lines` has the file and line of each part. `reserved` has the resolved datasets of the scale `small`, whose rows
    the scale `trial` must not be judged on.
    """

    file: StudyFile
    scale: str
    lines: YamlDocument
    reserved: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """The study's name with its scale, as `er-table-2-small`."""
        return f"{self.file.name}-{self.scale}"

    def dataset(self, name: str, *, judged: bool = False) -> dict[str, Any]:
        """Return a resolved dataset; with `judged`, one without the reserved rows."""
        return resolve_dataset(self.file, name, self.reserved if judged else ())

    def error(self, place: Place, message: object) -> ExpoundError:
        """Return an error that names the file and line of a place."""
        return ExpoundError(f"{self.lines.line_of(place)}: {'.'.join(map(str, place))}: {message}")


def load_study(path: str | Path, scale: str = "small") -> Study:
    """Read and check a study file.

    `extends: FILE` merges the file onto another one, whose path is relative to the file's folder. The part of `scales`
    with the chosen scale is merged onto both; null removes a key. `${NAME}` and `${NAME:-default}` in texts are
    environment variables. The scale `trial` is merged onto `small`, with its own seed, and is judged on rows that
    `small` does not use.

    Raises:
        ExpoundError: a malformed file or an unknown name; with file and line.
    """
    whole = _read_with_base(Path(path), ())
    if not isinstance(whole.value, dict):
        raise ExpoundError(f"{whole.lines[()]}: expected keys and values, got {type(whole.value).__name__}")
    chosen = _apply_scale(whole, scale)
    chosen.value.setdefault("name", Path(path).stem)
    try:
        file = StudyFile.model_validate(chosen.value)
    except ValidationError as error:
        raise ExpoundError(format_first_problem(error, chosen)) from error
    reserved = []
    if scale == TRIAL:
        small = load_study(path).file
        reserved = [resolve_dataset(small, name) for name in small.datasets]
    study = Study(file, scale, chosen, reserved)
    for place, problem in find_problems(file):
        raise study.error(place, problem) from problem
    return study


def _read_with_base(path: Path, above: tuple[Path, ...]) -> YamlDocument:
    """Read a file, fill in variables and merge it onto the file that it extends."""
    if path.resolve() in above:
        raise ExpoundError(f"{path} extends itself")
    found = read_yaml(path)
    found.value = _fill_variables(found, found.value, ())
    if not isinstance(found.value, dict) or "extends" not in found.value:
        return found
    base = found.value.pop("extends")
    if not isinstance(base, str):
        raise ExpoundError(f"{found.line_of(('extends',))}: expected a file to extend, got {base!r}")
    try:
        below = _read_with_base(path.parent / base, (*above, path.resolve()))
    except ExpoundError as error:
        if not (path.parent / base).exists():
            raise ExpoundError(f"{found.line_of(('extends',))}: there is no file {path.parent / base}") from error
        raise
    # A null inside a scale stays for now: it removes a key of the merged whole, which is known later.
    return merge_documents(below, found, keep_null=("scales",))


def _fill_variables(document: YamlDocument, value: Any, place: Place) -> Any:
    """Replace environment variables in all texts of a value."""
    if isinstance(value, dict):
        return {key: _fill_variables(document, inner, (*place, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill_variables(document, inner, (*place, index)) for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        text = os.environ.get(name) or default
        if text is None:
            raise ExpoundError(f"{document.line_of(place)}: the environment variable {name} is not set")
        return text

    return VARIABLE.sub(replace, value)


def _apply_scale(whole: YamlDocument, scale: str) -> YamlDocument:
    """Merge the part of `scales` with the chosen scale onto the file."""
    check_choice("scale", scale, SCALES)
    if "scales" not in whole.value:
        return whole
    scales = get_part(whole, "scales")
    if not isinstance(scales.value, dict) or set(scales.value) - set(SCALES):
        raise ExpoundError(f"{scales.lines[()]}: scales: expected {', '.join(SCALES[:-1])} and {SCALES[-1]}")
    at = whole.lines[()]
    found = merge_documents(whole, YamlDocument({"scales": None}, {(): at, ("scales",): scales.lines[()]}))
    if scale == TRIAL:
        if scales.value.get("small"):
            found = merge_documents(found, get_part(scales, "small"))
        found = merge_documents(found, YamlDocument({"seeds": TRIAL_SEEDS}, {(): at, ("seeds",): at}))
    if scales.value.get(scale):
        found = merge_documents(found, get_part(scales, scale))
    return found


def format_first_problem(error: ValidationError, document: YamlDocument) -> str:
    """Return the first error of a validation with its line, and the number of further errors."""
    first, *others = error.errors()
    text = f"{document.line_of(first['loc'])}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    # Of a missing or unknown key pydantic gives the whole mapping as the input.
    if first["type"] not in ("missing", "extra_forbidden"):
        text += f", got {first['input']!r:.60}"
    if others:
        text += f" (and {len(others)} more)"
    return text
