"""A run done once, whoever else tries, and what became of an attempt."""

from __future__ import annotations

import errno
import logging
import os
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exegete.data.atomic_files import try_lock
from exegete.errors import ExegeteError, Stopped
from exegete.studies.runs.store import Cell, Store, write_record

logger = logging.getLogger(__name__)

NO_SPACE = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "unexpected pos", "failed writing file")
"""Words of a full disk: the system's, and torch's for a file of which it could not write all."""

Status = Literal["done", "busy", "failed", "refused", "killed", "stopped", "full"]


@dataclass(frozen=True, slots=True)
class CellResult:
    """How an attempt at a run ended.

    `done`; `busy`: another process is at it; `failed`: it raised; `refused`: bad input, which no second attempt
    mends; `killed`: its process died; `stopped`: by a signal, with nothing lost; `full`: there is no space left.
    """

    key: str
    status: Status
    message: str = ""
    seconds: float = 0.0


def run_cell(cell: Cell, root: Path, *, threads: int = 1) -> bool:
    """Do a cell unless it is done. Return whether it is done now; False if another process is at it.

    Raises:
        Exception: any error of the cell's own work; its lock is free then, and its checkpoints stay.
    """
    store = Store(root)
    if store.is_complete(cell.key):
        return True
    with try_lock(store.lock_path(cell.key)) as acquired:
        if not acquired:
            return False
        if store.is_complete(cell.key):
            return True
        store.clean(cell.key)
        begun, spent = time.monotonic(), time.process_time()
        try:
            with store.workspace(cell) as space:
                cell.run(cell, space)
                cost = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - spent}
                write_record(space.output, cell, threads, **cost)
        except FileExistsError:
            # The network file system may have taken the lock from a process that was cut off: the first to finish wins.
            if not store.is_complete(cell.key):
                raise
            logger.warning("%s was finished by another process meanwhile", cell.title)
    return True


def remove_leftovers(cells: Iterable[Cell], root: Path) -> None:
    """Removes what killed processes left of finished runs, but for those that somebody is at."""
    store = Store(root)
    find_leftovers = store.find_leftovers()
    for key in (cell.key for cell in cells if cell.key in find_leftovers and store.is_complete(cell.key)):
        with try_lock(store.lock_path(key)) as acquired:
            if acquired:
                store.clean(key)


def try_cell(cell: Cell, root: Path, *, threads: int = 1) -> CellResult:
    """`run_cell`, with whatever it raises as a message; the traceback goes to `failed/` in the store."""
    begun = time.monotonic()
    try:
        status: Status = "done" if run_cell(cell, root, threads=threads) else "busy"
        return CellResult(cell.key, status, seconds=time.monotonic() - begun)
    except Stopped as stopped:
        return CellResult(cell.key, "stopped", str(stopped))
    except Exception as error:  # a run's failure is a result of the study
        message = f"{type(error).__name__}: {error}" if not isinstance(error, ExegeteError) else str(error)
        _keep_traceback(Store(root).failure_path(cell.key), cell)
        return CellResult(cell.key, _status_of_error(error), " ".join(message.split()), time.monotonic() - begun)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error comes from a full disk or a used-up quota, whatever it was wrapped in."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error) for words in NO_SPACE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _status_of_error(error: BaseException) -> Status:
    if is_disk_full(error):
        return "full"
    return "refused" if isinstance(error, ExegeteError) else "failed"


def _keep_traceback(path: Path, cell: Cell) -> None:
    """Keeps the traceback, if there is room for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{cell.title}\n\n{traceback.format_exc()}", encoding="utf-8")
    except OSError as error:
        logger.warning("the traceback of %s could not be kept: %s", cell.title, error)
