"""A task that a worker process executes, and the outcome of an attempt."""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from expound.errors import ExpoundError, Stopped, is_disk_full

logger = logging.getLogger(__name__)

Status = Literal["done", "busy", "failed", "refused", "killed", "stopped", "full"]


@dataclass(frozen=True)
class Task:
    """A unit of work for a worker process.

    Args:
        key: identifies the task among the others.
        title: names the task in messages.
        run: a picklable function, called with `threads=`; it returns False if another process does the work now.
        needs: keys of the tasks that must be done first.
        failure_file: keeps the traceback of an error.
    """

    key: str
    title: str
    run: Callable[..., bool]
    needs: tuple[str, ...] = ()
    failure_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The outcome of an attempt to execute a task.

    `done`; `busy`: another process executes it; `failed`: it raised an error; `refused`: bad input, for which another
    attempt is useless; `killed`: its process died; `stopped`: by a signal, after it saved; `full`: the disk is full.
    """

    key: str
    status: Status
    message: str = ""
    seconds: float = 0.0


def try_task(task: Task, threads: int = 1) -> TaskResult:
    """Execute a task and return the outcome, with any error as a message."""
    start = time.monotonic()
    try:
        status: Status = "done" if task.run(threads=threads) else "busy"
        return TaskResult(task.key, status, seconds=time.monotonic() - start)
    except Stopped as stopped:
        return TaskResult(task.key, "stopped", str(stopped))
    # A failed task is a result like others, and must not end the worker process.
    except Exception as error:
        _keep_traceback(task)
        status, message = "failed", f"{type(error).__name__}: {error}"
        if isinstance(error, ExpoundError):
            status, message = "refused", str(error)
        if is_disk_full(error):
            status = "full"
        return TaskResult(task.key, status, " ".join(message.split()), time.monotonic() - start)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _keep_traceback(task: Task) -> None:
    """Write the current traceback to the task's file; on a full disk log a warning instead."""
    if task.failure_file is None:
        return
    try:
        task.failure_file.parent.mkdir(parents=True, exist_ok=True)
        task.failure_file.write_text(f"{task.title}\n\n{traceback.format_exc()}", encoding="utf-8")
    except OSError as error:
        logger.warning("the traceback of %s could not be kept: %s", task.title, error)
