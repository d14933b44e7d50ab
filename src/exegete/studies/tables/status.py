"""The progress of a study."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from exegete.studies.runs.estimate import sum_time_spent
from exegete.studies.runs.grid import RunGrid
from exegete.studies.runs.store import Store


class StudyStatus(NamedTuple):
    """The numbers of all and of finished runs by kind (`train`, `judge`), reasons of failures by title, CPU seconds."""

    total: Counter[str]
    done: Counter[str]
    failed: dict[str, str]
    seconds: float


def get_status(grid: RunGrid, store: Store) -> StudyStatus:
    """Return the state of a grid's runs in a store."""
    total, done, failed = Counter[str](), Counter[str](), dict[str, str]()
    for cell in grid.cells:
        kind = str(cell.config["kind"])
        total[kind] += 1
        if store.is_done(cell.key):
            done[kind] += 1
        elif store.failure_path(cell.key).exists():
            failed[cell.title] = store.failure_reason(cell.key)
    return StudyStatus(total, done, failed, sum_time_spent(grid.cells, store))
