"""Schedules cells on workers in dependency order, retries failures, and reports progress."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from expound_papers.runs.run_cell import CellResult, remove_leftovers
from expound_papers.runs.store import Cell, Store

logger = logging.getLogger(__name__)

ATTEMPTS = 3
POLL_SECONDS = 2.0


class Workers(Protocol):
    """Executes cells, in local processes or on a Ray cluster."""

    @property
    def free_count(self) -> int:
        """The number of cells that could be started now."""

    def start(self, cell: Cell) -> None:
        """Start a cell on an idle worker."""

    def wait(self, seconds: float) -> list[CellResult]:
        """Return the results since the last call; wait for one, but at most `seconds`."""

    def close(self) -> None:
        """Let running cells save, and end all workers."""


@dataclass
class Outcome:
    """The outcome of a study.

    `done` has the keys of finished cells, `failed` the reasons of failed ones by key. `full`: the disk was full.
    `waiting` is the number of cells that were not started, since the time was up or the disk full.
    """

    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    full: bool = False
    waiting: int = 0


def run_all(
    cells: Sequence[Cell],
    root: Path,
    workers: Workers,
    report: Callable[[Cell, CellResult], None] = lambda cell, result: None,
    attempts: int = ATTEMPTS,
    minutes: float | None = None,
) -> Outcome:
    """Run every unfinished cell. A failed cell fails its dependants only.

    A cell that raises an error or whose process dies is retried, up to `attempts` attempts in all; bad input is not.
    A cell that another process executes is waited for. On a full disk no new cell starts, nor after `minutes`.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came; running cells were given the time to save.
    """
    remove_leftovers(cells, root)
    queue = _Queue(cells, Store(root), attempts, math.inf if minutes is None else time.monotonic() + 60 * minutes)
    try:
        with _raise_on_sigterm():
            while queue.has_work:
                for cell in queue.take_ready(workers.free_count):
                    workers.start(cell)
                for result in workers.wait(queue.poll_seconds()):
                    report(queue.cells[result.key], queue.add_result(result))
                queue.fail_dependants(report)
    finally:
        workers.close()
    queue.outcome.waiting = len(queue.waiting)
    return queue.outcome


class _Queue:
    """The cells of a study in the order in which they start."""

    def __init__(self, cells: Sequence[Cell], store: Store, attempts: int, end: float) -> None:
        self.cells = {cell.key: cell for cell in cells}
        self.store, self.attempts, self.end = store, attempts, end
        self.waiting = store.list_unfinished(cells)
        self.outcome = Outcome(set(self.cells) - set(self.waiting))
        self.running: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.not_before: dict[str, float] = {}

    @property
    def has_work(self) -> bool:
        """Whether a cell is running or can still start."""
        return bool(self.running or (self.waiting and not self.is_closed))

    @property
    def is_closed(self) -> bool:
        """Whether no new cell may start."""
        return self.outcome.full or time.monotonic() > self.end

    def take_ready(self, count: int) -> Iterator[Cell]:
        """Yield up to `count` cells whose dependencies are done, and count them as running from then on."""
        now = time.monotonic()
        # A copy, as cells leave the list while it is iterated.
        for key in list(self.waiting):
            if count <= 0 or self.is_closed:
                return
            if self.not_before.get(key, 0.0) <= now and self.outcome.done.issuperset(self.cells[key].needs):
                self.waiting.remove(key)
                self.running.add(key)
                count -= 1
                yield self.cells[key]

    def poll_seconds(self) -> float:
        """Return how long to wait for workers before looking at other processes' cells again."""
        # Only cells of other processes are left: look more often, as no worker will wake this process.
        if self.running or not self.waiting:
            return POLL_SECONDS
        return POLL_SECONDS / 4

    def add_result(self, result: CellResult) -> CellResult:
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
            if result.status == "refused" or self.failures[result.key] >= self.attempts:
                self.outcome.failed[result.key] = result.message
                return CellResult(result.key, "failed", result.message, result.seconds)
            # To the front: its checkpoints are fresh, and its dependants wait for it.
            self.waiting.insert(0, result.key)
        return result

    def fail_dependants(self, report: Callable[[Cell, CellResult], None]) -> None:
        """Fail the waiting cells that need a failed one."""
        for key in list(self.waiting):
            failed = [need for need in self.cells[key].needs if need in self.outcome.failed]
            if failed:
                self.waiting.remove(key)
                name = self.cells[failed[0]].title
                self.outcome.failed[key] = f"needs {name!r}, which failed"
                report(self.cells[key], CellResult(key, "failed", self.outcome.failed[key]))


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
