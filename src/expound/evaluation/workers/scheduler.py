"""Schedules tasks on workers in dependency order, retries failures, and reports progress."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

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


ATTEMPTS = 3
POLL_SECONDS = 2.0


class Workers(Protocol):
    """Executes tasks, in local processes or on a Ray cluster."""

    @property
    def free_count(self) -> int:
        """The number of tasks that could be started now."""

    def start(self, task: Task) -> None:
        """Start a task on an idle worker."""

    def wait(self, seconds: float) -> list[TaskResult]:
        """Return the results since the last call; wait for one, but at most `seconds`."""

    def close(self) -> None:
        """Let running tasks save, and end all workers."""


@dataclass
class Outcome:
    """The outcome of many tasks.

    `done` has the keys of finished tasks, `failed` the reasons of failed ones by key. `full`: the disk was full.
    `waiting` is the number of tasks that were not started, since the time was up or the disk full.
    """

    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    full: bool = False
    waiting: int = 0


def run_all(
    tasks: Sequence[Task],
    workers: Workers,
    report: Callable[[Task, TaskResult], None] = lambda task, result: None,
    *,
    done: Collection[str] = (),
    minutes: float | None = None,
) -> Outcome:
    """Run every task whose key is not in `done`, and end the workers.

    A failed task fails its dependants only. A task that raises an error or whose process dies is tried three times; bad
    input is not. A task that another process executes is waited for. On a full disk no new task starts, nor after
    `minutes`.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came; running tasks were given the time to save.
    """
    queue = _Queue(tasks, done, math.inf if minutes is None else time.monotonic() + 60 * minutes)
    try:
        with _raise_on_sigterm():
            while queue.has_work:
                for task in queue.take_ready(workers.free_count):
                    workers.start(task)
                for result in workers.wait(queue.poll_seconds()):
                    report(queue.tasks[result.key], queue.add_result(result))
                queue.fail_dependants(report)
    finally:
        workers.close()
    queue.outcome.waiting = len(queue.waiting)
    return queue.outcome


class _Queue:
    """The tasks in the order in which they start."""

    def __init__(self, tasks: Sequence[Task], done: Collection[str], end: float) -> None:
        self.tasks = {task.key: task for task in tasks}
        self.end, self.outcome = end, Outcome(set(done))
        self.waiting = [key for key in self.tasks if key not in self.outcome.done]
        self.running: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.not_before: dict[str, float] = {}

    @property
    def has_work(self) -> bool:
        """Whether a task is running or can still start."""
        return bool(self.running or (self.waiting and not self.is_closed))

    @property
    def is_closed(self) -> bool:
        """Whether no new task may start."""
        return self.outcome.full or time.monotonic() > self.end

    def take_ready(self, count: int) -> Iterator[Task]:
        """Yield up to `count` tasks whose dependencies are done, and count them as running from then on."""
        now = time.monotonic()
        # A copy, as tasks leave the list while it is iterated.
        for key in list(self.waiting):
            if count <= 0 or self.is_closed:
                return
            if self.not_before.get(key, 0.0) <= now and self.outcome.done.issuperset(self.tasks[key].needs):
                self.waiting.remove(key)
                self.running.add(key)
                count -= 1
                yield self.tasks[key]

    def poll_seconds(self) -> float:
        """Return how long to wait for workers before looking at other processes' tasks again."""
        # Only tasks of other processes are left: look more often, as no worker will wake this process.
        if self.running or not self.waiting:
            return POLL_SECONDS
        return POLL_SECONDS / 4

    def add_result(self, result: TaskResult) -> TaskResult:
        """Update the queue with the end of an attempt; return it, as `failed` after the last attempt."""
        self.running.discard(result.key)
        if result.status == "done":
            self.outcome.done.add(result.key)
        elif result.status == "full":
            self.outcome.full = True
            self.outcome.failed[result.key] = result.message
        elif result.status == "busy":
            self.waiting.append(result.key)
            self.not_before[result.key] = time.monotonic() + POLL_SECONDS
        else:
            self.failures[result.key] += 1
            if result.status == "refused" or self.failures[result.key] >= ATTEMPTS:
                self.outcome.failed[result.key] = result.message
                return TaskResult(result.key, "failed", result.message, result.seconds)
            # To the front: its checkpoints are fresh, and its dependants wait for it.
            self.waiting.insert(0, result.key)
        return result

    def fail_dependants(self, report: Callable[[Task, TaskResult], None]) -> None:
        """Fail the waiting tasks that need a failed one."""
        for key in list(self.waiting):
            failed = [need for need in self.tasks[key].needs if need in self.outcome.failed]
            if failed:
                self.waiting.remove(key)
                name = self.tasks[failed[0]].title
                self.outcome.failed[key] = f"needs {name!r}, which failed"
                report(self.tasks[key], TaskResult(key, "failed", self.outcome.failed[key]))


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM during the block."""
    # Python allows signal handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
