"""Execute cells exactly once among all processes: one of them, or all cells of a study on workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from expound.data.atomic_files import try_lock
from expound.evaluation.workers import scheduler
from expound.evaluation.workers.scheduler import Outcome, Task, TaskResult, Workers
from expound_papers.runs.store import Cell, Store, write_record

logger = logging.getLogger(__name__)


def run_all(
    cells: Sequence[Cell],
    root: Path,
    workers: Workers,
    report: Callable[[Task, TaskResult], None] = lambda task, result: None,
    minutes: float | None = None,
) -> Outcome:
    """Execute every unfinished cell on workers, see `expound.evaluation.workers.scheduler.run_all`."""
    remove_leftovers(cells, root)
    done = {cell.key for cell in cells} - set(Store(root).list_unfinished(cells))
    return scheduler.run_all([make_task(cell, root) for cell in cells], workers, report, done=done, minutes=minutes)


def make_task(cell: Cell, root: Path) -> Task:
    """Return the task that executes a cell; the traceback of an error goes to `failed/` of the store."""
    return Task(cell.key, cell.title, partial(run_cell, cell, root), cell.needs, Store(root).failure_path(cell.key))


def run_cell(cell: Cell, root: Path, *, threads: int = 1) -> bool:
    """Execute a cell unless it is done. Return whether it is done now; False if another process executes it.

    Raises:
        Exception: any error of the cell's own function; its lock is released then, and its checkpoints stay.
    """
    store = Store(root)
    if store.is_complete(cell.key):
        return True
    with try_lock(store.lock_path(cell.key)) as acquired:
        if not acquired:
            return False
        # Another process may have finished it between the first look and the lock.
        if store.is_complete(cell.key):
            return True
        store.clean(cell.key)
        start, cpu_start = time.monotonic(), time.process_time()
        try:
            with store.workspace(cell) as space:
                cell.run(cell, space)
                cost = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu_start}
                write_record(space.output, cell, threads, **cost)
        except FileExistsError:
            # The network file system may have taken the lock from a process that was cut off: the first to finish wins.
            if not store.is_complete(cell.key):
                raise
            logger.warning("%s was finished by another process meanwhile", cell.title)
    return True


def remove_leftovers(cells: Iterable[Cell], root: Path) -> None:
    """Remove temporary files that killed processes left of finished cells, unless a process executes the cell now."""
    store = Store(root)
    # One directory listing finds the few candidates; checking every cell's record would take seconds.
    leftovers = store.find_leftovers()
    for cell in cells:
        if cell.key in leftovers and store.is_complete(cell.key):
            with try_lock(store.lock_path(cell.key)) as acquired:
                if acquired:
                    store.clean(cell.key)
