"""Execute a cell exactly once among all processes, and report how an attempt ended."""

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

from expound.data.atomic_files import try_lock
from expound.errors import ExpoundError, Stopped
from expound_papers.runs.store import Cell, Store, write_record

logger = logging.getLogger(__name__)

DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "unexpected pos", "failed writing file")
"""Messages of a full disk: the system's, and torch's for a file that it could not write completely."""

Status = Literal["done", "busy", "failed", "refused", "killed", "stopped", "full"]


@dataclass(frozen=True, slots=True)
class CellResult:
    """The outcome of an attempt to execute a cell.

    `done`; `busy`: another process executes it; `failed`: it raised an error; `refused`: bad input, for which another
    attempt is useless; `killed`: its process died; `stopped`: by a signal, after it saved; `full`: the disk is full.
    """

    key: str
    status: Status
    message: str = ""
    seconds: float = 0.0


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


def try_cell(cell: Cell, root: Path, *, threads: int = 1) -> CellResult:
    """Execute a cell as `run_cell` does, with any error as a message; the traceback goes to `failed/` of the store."""
    start = time.monotonic()
    try:
        is_done = run_cell(cell, root, threads=threads)
        return CellResult(cell.key, "done" if is_done else "busy", seconds=time.monotonic() - start)
    except Stopped as stopped:
        return CellResult(cell.key, "stopped", str(stopped))
    # A failed cell is a result of the study, and must not end the worker process.
    except Exception as error:
        _keep_traceback(Store(root).failure_path(cell.key), cell)
        status: Status = "failed"
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, ExpoundError):
            status, message = "refused", str(error)
        if is_disk_full(error):
            status = "full"
        return CellResult(cell.key, status, " ".join(message.split()), time.monotonic() - start)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, comes from a full disk or an exceeded quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # Rust's safetensors and torch's C++ writer raise their own error types, which carry the message alone.
        if any(words in str(error) for words in DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _keep_traceback(path: Path, cell: Cell) -> None:
    """Write the current traceback to a file; on a full disk log a warning instead."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{cell.title}\n\n{traceback.format_exc()}", encoding="utf-8")
    except OSError as error:
        logger.warning("the traceback of %s could not be kept: %s", cell.title, error)
