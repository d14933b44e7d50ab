"""Runs that take almost no time, for tests of the engine that does them."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from expound.errors import ExpoundError
from expound.evaluation.workers.scheduler import try_task
from expound_papers.runs.store import Cell


def note(folder: Path, name: str) -> None:
    """Appends a line to a log that many processes write."""
    with (folder / "log").open("a") as log:
        log.write(f"{name} {os.getpid()}\n")


def ordinary(cell, space):
    """Writes two files, and a line into the log beside the store."""
    note(space.store.root.parent, str(cell.config["number"]))
    (space.work / "half").write_text("done")
    (space.output / "first.txt").write_text(str(cell.config["number"]))
    time.sleep(cell.sources.get("pause", 0))
    (space.output / "folder").mkdir()
    (space.output / "folder" / "second.txt").write_text("x" * 2000)


def raising(cell, space):
    raise RuntimeError("broken on purpose")


def raising_once(cell, space):
    if not (space.work / "tried").exists():
        (space.work / "tried").touch()
        raise RuntimeError("broken for the context")
    ordinary(cell, space)


def refusing(cell, space):
    raise ExpoundError("there is no dataset")


def filling(cell, space):
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise RuntimeError("weights could not be written") from error


def dying(cell, space):
    if not (space.work / "tried").exists():
        (space.work / "tried").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    ordinary(cell, space)


def slow(cell, space):
    time.sleep(60)


def cells(count, run=ordinary, **more):
    return [Cell({"kind": "test", "number": number}, run, f"run {number}", **more) for number in range(count)]


class Inline:
    """Workers in the calling process, one run at a time."""

    free_count = 1

    def __init__(self):
        self.ended, self.closed = [], False

    def start(self, task):
        self.ended.append(try_task(task))

    def wait(self, seconds):
        ended, self.ended = self.ended, []
        return ended

    def close(self):
        self.closed = True
