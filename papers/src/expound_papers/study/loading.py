"""Finds studies: by name among those of the papers, or in a Python file of one's own."""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import traceback
from collections.abc import Mapping
from inspect import cleandoc
from pathlib import Path
from types import FunctionType
from typing import Any

from expound.errors import ExpoundError, check_choice
from expound_papers.study.study import TRIAL, Study, StudyFunction

SCALES = ("small", "paper", TRIAL)
_REGISTERED: dict[StudyFunction, str] = {}


def register(function: StudyFunction) -> StudyFunction:
    """Make a function a study; `er_table_2` is run as er-table-2. Its docstring is the study's title and notes."""
    _REGISTERED[function] = function.__name__.replace("_", "-")
    return function


def list_studies() -> dict[str, StudyFunction]:
    """Return the papers' studies by name."""
    package = importlib.import_module("expound_papers.studies")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return {name: each for each, name in _REGISTERED.items() if each.__module__.startswith(package.__name__)}


def find_study(name: str) -> tuple[str, StudyFunction]:
    """Return a study's name and function.

    Args:
        name: the name of a paper's study, or a Python file (`FILE.py`, or `FILE.py:NAME` if it has several).

    Raises:
        ExpoundError: an unknown name, or a file without studies.
    """
    path, _, chosen = name.partition(":")
    if not path.endswith(".py"):
        studies = list_studies()
        check_choice("study", name, studies)
        return name, studies[name]
    if not Path(path).is_file():
        raise ExpoundError(f"there is no file {path}")
    try:
        content = runpy.run_path(path)
    except SyntaxError as error:
        raise ExpoundError(f"{path}:{error.lineno}: {error.msg}") from error
    found = {
        _REGISTERED[each]: each for each in content.values() if isinstance(each, FunctionType) and each in _REGISTERED
    }
    if not chosen and len(found) == 1:
        (chosen,) = found
    if chosen not in found:
        raise ExpoundError(f"{path}: expected {path}:NAME with one of its studies: {', '.join(found) or 'it has none'}")
    return chosen, found[chosen]


def load_study(
    name: str | Path, scale: str = "small", recorded: Mapping[str, Mapping[str, Any]] | None = None
) -> Study:
    """Return a study with its recorded runs.

    Args:
        name: as for `find_study`.
        scale: `small`, `paper` or `trial`.
        recorded: addresses from another machine, used for datasets and models that are not on this one.

    Raises:
        ExpoundError: an unknown study or scale, or an error in it.
    """
    check_choice("scale", scale, SCALES)
    known, function = find_study(str(name))
    return record_study(function, known, scale, recorded)


def record_study(
    function: StudyFunction, name: str, scale: str = "small", recorded: Mapping[str, Mapping[str, Any]] | None = None
) -> Study:
    """Return the study that a function records."""
    reserved: list[dict[str, Any]] = []
    if scale == TRIAL:
        small = record_study(function, name)
        reserved = [data.resolve() for data in small.datasets.values()]
    study = Study(name, scale, recorded, reserved)
    title, _, notes = cleandoc(function.__doc__ or name).partition("\n\n")
    study.title, study.notes = " ".join(title.split()).removesuffix("."), " ".join(notes.split())
    try:
        function(study)
    except ExpoundError as error:
        # The line of the study's own file, since the traceback is not shown on the command line.
        file = function.__code__.co_filename
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        raise ExpoundError(f"{file}:{lines[-1]}: {error}") from error
    return study
