"""Study files and their finished runs, for the commands of `expound study`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound_papers.runs.grid import RunGrid
    from expound_papers.runs.store import Store
    from expound_papers.tables.page import PagePart
    from expound_papers.tables.results import Results


class Scale(StrEnum):
    """The scale of a study."""

    small = "small"
    paper = "paper"
    trial = "trial"


def open_study(file: Path, scale: Scale, output_dir: Path, only: str | None) -> tuple[RunGrid, Store]:
    """Return the grid of a study's runs and the store of finished runs.

    Raises:
        ExpoundError: the file is not a study, or no run has `only` in its title.
    """
    from expound_papers.runs.grid import build_grid
    from expound_papers.runs.store import Store
    from expound_papers.spec.study_file import load_study

    study, store = load_study(file, scale.value), Store(output_dir)
    runs = build_grid(study, store.read_sources(study.name)).select(only)
    if not runs.runs:
        raise ExpoundError(f"no run of {file} has {only!r} in its title")
    return runs, store


def load_results(file: Path, scale: Scale, output_dir: Path) -> Results:
    """Return the results of a study's finished runs."""
    from expound_papers.tables.results import collect_results

    return collect_results(*open_study(file, scale, output_dir, None))


def load_page_parts(files: Sequence[Path], output_dir: Path) -> Iterator[tuple[PagePart, dict[str, Results]]]:
    """Yield hand-written page texts, each with the results of its studies by name."""
    from expound_papers.tables.page import read_page_part

    for file in files:
        part = read_page_part(file)
        yield part, {name: load_results(path, Scale(part.scale), output_dir) for name, path in part.studies.items()}
