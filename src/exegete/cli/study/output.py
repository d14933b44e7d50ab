"""Lines that `exegete study` says about runs: what is done, left, failed and written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from exegete.cli.shared.console import console, say

if TYPE_CHECKING:
    from exegete.studies.runs.grid import RunGrid
    from exegete.studies.runs.run_cell import CellResult
    from exegete.studies.runs.store import Cell, Store
    from exegete.studies.workers.scheduler import Outcome


class Progress:
    """Says on standard error what happens."""

    def __init__(self, grid: RunGrid, quiet: bool) -> None:
        self.count, self.left, self.quiet = len(grid.cells), len(grid.cells), quiet

    def __call__(self, cell: Cell, ended: CellResult) -> None:
        """Says how one run ended."""
        if ended.status in ("done", "failed"):
            self.left -= 1
        if ended.status == "busy" or (self.quiet and ended.status == "done"):
            return
        what = {"done": f"done in {ended.seconds:.0f} s", "failed": "FAILED", "killed": "killed, trying again"}
        message = f": {ended.message}" if ended.message else ""
        say(f"{cell.title}: {what.get(ended.status, ended.status)}{message}")


def show_status(grid: RunGrid, store: Store) -> dict[str, str]:
    """Says what is done, what it took and what is left; gives the failed runs' reasons by title."""
    from exegete.studies.runs.estimate import format_duration
    from exegete.studies.tables.status import get_status

    now = get_status(grid, store)
    words = {"train": "training runs", "judge": "judgements"}
    counts = [f"{now.total[kind]} {word} ({now.done[kind]} done)" for kind, word in words.items() if now.total[kind]]
    console().print(f"{grid.study.name}: {now.total.total()} runs: {', '.join(counts)}", markup=False)
    if now.seconds:
        console().print(f"done: took {format_duration(now.seconds)} of one core", markup=False)
    show_left([grid], store)
    return now.failed


def show_left(grids: Sequence[RunGrid], store: Store, prefix: str = "") -> None:
    """Say how long the unfinished runs may take, and of how many that is unknown yet."""
    from exegete.studies.runs.estimate import estimate_time_left, format_duration

    left = estimate_time_left(grids, store)
    parts = []
    if left.known:
        parts.append(f"about {format_duration(left.seconds)} of one core for {left.known} runs")
    if left.unknown:
        parts.append(f"unknown yet for {left.unknown} runs (no run of their kind is finished)")
    if parts:
        console().print(f"{prefix}left: {', '.join(parts)}", markup=False)


def show_runs(grid: RunGrid, store: Store, quiet: bool) -> None:
    """Names what is not on this machine, and every run."""
    for line in grid.missing:
        say(f"not on this machine: {line}")
    for each in () if quiet else grid.runs:
        console().print(f"{'done' if store.is_done(each.cell.key) else '    '}  {each.title}", markup=False)


def write(grid: RunGrid, store: Store) -> bool:
    """Writes a study's report; a full disk is said, not raised. Gives whether there was room."""
    from exegete.studies.runs.run_cell import is_disk_full
    from exegete.studies.tables.report import write_report
    from exegete.studies.tables.results import collect_results

    try:
        page = write_report(collect_results(grid, store), store.root / "studies" / grid.study.name)
    except OSError as error:
        if not is_disk_full(error):
            raise
        say(f"the report could not be written: {error.strerror or error}")
        return False
    say(f"report: {page}")
    return True


def show_end(grid: RunGrid, outcome: Outcome, root: Path) -> bool:
    """Says what failed or is left; whether anything failed."""
    titles = {cell.key: cell.title for cell in grid.cells}
    for key, reason in outcome.failed.items():
        say(f"failed: {titles[key]}: {reason} (see {root / 'failed' / key}.txt)")
    if outcome.full:
        say(f"the disk of {root} is full: make room and run the same command; {len(outcome.done)} runs are kept")
    elif outcome.waiting:
        say(f"the time is up: {outcome.waiting} runs are left; the same command goes on")
    return bool(outcome.failed)
