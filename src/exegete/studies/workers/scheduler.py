"""Runs on workers: what comes after what, what is tried again, and what is reported."""

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

from exegete.studies.runs.run_cell import CellResult, remove_leftovers
from exegete.studies.runs.store import Cell, Store

logger = logging.getLogger(__name__)

ATTEMPTS = 3
POLL_SECONDS = 2.0


class Workers(Protocol):
    """Workers that carry out runs: processes of this machine, or a cluster."""

    @property
    def free_count(self) -> int:
        """How many runs could be started now."""

    def start(self, cell: Cell) -> None:
        """Starts a run on a free worker."""

    def wait(self, seconds: float) -> list[CellResult]:
        """The runs that have ended since the last call; waits for one, but not longer than so long."""

    def close(self) -> None:
        """Lets running ones save, and ends."""


@dataclass
class Outcome:
    """The outcome of a study's runs, by address: `failed` has the reasons; `full`: the disk was, the rest waits.

    `waiting`: how many runs were not begun, as the time was up or the disk full.
    """

    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    full: bool = False
    waiting: int = 0


def run_all(
    cells: Sequence[Cell],
    root: Path,
    workers: Workers,
    report: Callable[[Cell, CellResult], None] = lambda cell, ended: None,
    attempts: int = ATTEMPTS,
    minutes: float | None = None,
) -> Outcome:
    """Does all runs that are not done; those that fail do not hold up the others.

    A run that raises or whose process dies is tried again, `attempts` times in all; bad input is not. A run that needs
    a failed one fails with it. A run that another process is at is waited for. On a full disk nothing new is begun, nor
    after so many `minutes`.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came; running ones were given the time to save.
    """
    remove_leftovers(cells, root)
    queue = _Queue(cells, Store(root), attempts, math.inf if minutes is None else time.monotonic() + 60 * minutes)
    try:
        with _raise_on_sigterm():
            while queue.has_work:
                for cell in queue.take_ready(workers.free_count):
                    workers.start(cell)
                for ended in workers.wait(queue.poll_seconds()):
                    report(queue.cells[ended.key], queue.record_end(ended))
                queue.fail_dependants(report)
    finally:
        workers.close()
    queue.outcome.waiting = len(queue.waiting)
    return queue.outcome


class _Queue:
    """The runs of a study in the order they are begun."""

    def __init__(self, cells: Sequence[Cell], store: Store, attempts: int, end: float) -> None:
        self.cells = {cell.key: cell for cell in cells}
        self.store, self.attempts, self.end = store, attempts, end
        self.waiting = store.list_unfinished(cells)
        self.outcome = Outcome(set(self.cells) - set(self.waiting))
        self.running: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.later: dict[str, float] = {}

    @property
    def has_work(self) -> bool:
        """Whether there is anything to begin or to wait for."""
        return bool(self.running or (self.waiting and not self.is_closed))

    @property
    def is_closed(self) -> bool:
        """Whether nothing new is begun."""
        return self.outcome.full or time.monotonic() > self.end

    def take_ready(self, count: int) -> Iterator[Cell]:
        """Up to so many runs whose needs are met, which count as running from here on."""
        now = time.monotonic()
        for key in list(self.waiting):
            if count <= 0 or self.is_closed:
                return
            if self.later.get(key, 0.0) <= now and self.outcome.done.issuperset(self.cells[key].needs):
                self.waiting.remove(key)
                self.running.add(key)
                count -= 1
                yield self.cells[key]

    def poll_seconds(self) -> float:
        """How long to wait for workers before looking again at what others do."""
        return POLL_SECONDS if self.running or not self.waiting else POLL_SECONDS / 4

    def record_end(self, ended: CellResult) -> CellResult:
        """Takes an attempt's end into account; it may count as `failed` where it was the last one."""
        self.running.discard(ended.key)
        if ended.status == "done":
            self.outcome.done.add(ended.key)
        elif ended.status == "full":
            self.outcome.full = True
            self.outcome.failed[ended.key] = ended.message
        elif ended.status == "busy":
            self.waiting.append(ended.key)
            self.later[ended.key] = time.monotonic() + POLL_SECONDS
        else:
            self.tried[ended.key] += 1
            if ended.status == "refused" or self.tried[ended.key] >= self.attempts:
                self.outcome.failed[ended.key] = ended.message
                return CellResult(ended.key, "failed", ended.message, ended.seconds)
            self.waiting.insert(0, ended.key)
        return ended

    def fail_dependants(self, report: Callable[[Cell, CellResult], None]) -> None:
        """Gives up on runs whose needs have failed."""
        for key in list(self.waiting):
            broken = next((need for need in self.cells[key].needs if need in self.outcome.failed), None)
            if broken is not None:
                self.waiting.remove(key)
                name = self.cells[broken].title if broken in self.cells else broken
                self.outcome.failed[key] = f"needs {name!r}, which failed"
                report(self.cells[key], CellResult(key, "failed", self.outcome.failed[key]))


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """SIGTERM as KeyboardInterrupt for the time of the block."""
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
