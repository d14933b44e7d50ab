"""Studies and their finished runs, for the commands of `expound study`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound_papers.runs.store import Store
    from expound_papers.study.study import Study
    from expound_papers.tables.page import PagePart
    from expound_papers.tables.results import Results


class Scale(StrEnum):
    """The scale of a study."""

    small = "small"
    paper = "paper"
    trial = "trial"


def open_store(path: Path) -> Store:
    """Return the finished runs in a folder, or in a file of exported figures."""
    from expound_papers.runs.store import Store
    from expound_papers.tables.figures_file import FiguresFile

    return FiguresFile(path) if path.suffix == ".parquet" else Store(path)


def open_study(name: str, scale: Scale, store: Store, only: str | None) -> Study:
    """Return a study with its runs.

    Raises:
        ExpoundError: an unknown study, or no run has `only` in its title.
    """
    from expound_papers.study.loading import find_study, record_study

    known, function = find_study(name)
    study = record_study(function, known, scale.value, store.read_sources(f"{known}-{scale.value}")).select(only)
    if not study.runs:
        raise ExpoundError(f"no run of {name} has {only!r} in its title")
    return study


def load_results(name: str, scale: Scale, store: Store) -> Results:
    """Return the results of a study's finished runs."""
    from expound_papers.tables.results import collect_results

    return collect_results(open_study(name, scale, store, None), store)


def load_page_parts(pages: Sequence[str | Path], store: Store) -> Iterator[tuple[PagePart, dict[str, Results]]]:
    """Yield hand-written page texts, each with the results of its studies by name."""
    from expound_papers.tables.page import read_page_part

    for page in pages:
        part = read_page_part(Path(page))
        yield part, {name: load_results(study, Scale(part.scale), store) for name, study in part.studies.items()}
