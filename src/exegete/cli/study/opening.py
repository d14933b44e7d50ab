"""Study files with the runs that are finished, opened for `exegete study`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.studies.runs.grid import RunGrid
    from exegete.studies.runs.store import Store
    from exegete.studies.tables.page import PagePart
    from exegete.studies.tables.results import Results


class Scale(StrEnum):
    """How large the study is."""

    small = "small"
    paper = "paper"
    trial = "trial"


def opened(file: Path, scale: Scale, output_dir: Path, only: str | None) -> tuple[RunGrid, Store]:
    """Return the grid of a study's runs and the store of those that are finished.

    Raises:
        ExegeteError: a file that is no study; no run with `only` in its title.
    """
    from exegete.studies.runs.grid import build_grid
    from exegete.studies.runs.store import Store
    from exegete.studies.spec.study_file import load_study

    study, store = load_study(file, scale.value), Store(output_dir)
    found = build_grid(study, store.read_sources(study.name)).select(only)
    if not found.runs:
        raise ExegeteError(f"no run of {file} has {only!r} in its title")
    return found, store


def results_of(file: Path, scale: Scale, output_dir: Path) -> Results:
    """A study's finished runs."""
    from exegete.studies.tables.results import collect_results

    return collect_results(*opened(file, scale, output_dir, None))


def page_parts(files: Sequence[Path], output_dir: Path) -> Iterator[tuple[PagePart, dict[str, Results]]]:
    """Hand-written parts of pages, each with the results of its studies by name."""
    from exegete.studies.tables.page import read_page_part

    for file in files:
        part = read_page_part(file)
        yield part, {name: results_of(path, Scale(part.scale), output_dir) for name, path in part.studies.items()}
