"""Messages of `expound study` about finished, unfinished and failed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from expound.cli.shared.console import console, say

if TYPE_CHECKING:
    from expound.evaluation.workers.scheduler import Outcome, Task, TaskResult
    from expound_papers.runs.store import Store
    from expound_papers.study.study import Study


class ProgressReporter:
    """Prints a line on standard error when a run ends."""

    def __init__(self, study: Study, quiet: bool) -> None:
        self.count, self.left, self.quiet = len(study.cells), len(study.cells), quiet

    def __call__(self, task: Task, ended: TaskResult) -> None:
        """Print how one run ended."""
        if ended.status in ("done", "failed"):
            self.left -= 1
        if ended.status == "busy" or (self.quiet and ended.status == "done"):
            return
        texts = {"done": f"done in {ended.seconds:.0f} s", "failed": "FAILED", "killed": "killed, retrying"}
        line = f"{task.title}: {texts.get(ended.status, ended.status)}"
        if ended.message:
            line += f": {ended.message}"
        say(line)


def show_status(study: Study, store: Store) -> dict[str, str]:
    """Print the numbers of finished runs, their time and the time left; return the failures by title."""
    from expound.reports.text import format_duration
    from expound_papers.tables.estimate import get_status

    now = get_status(study, store)
    words = {"train": "training runs", "judge": "judgements"}
    counts = [f"{now.total[kind]} {word} ({now.done[kind]} done)" for kind, word in words.items() if now.total[kind]]
    console().print(f"{study.name}: {now.total.total()} runs: {', '.join(counts)}", markup=False)
    if now.seconds:
        console().print(f"done: took {format_duration(now.seconds)} of one core", markup=False)
    show_left([study], store)
    return now.failed


def show_left(studies: Sequence[Study], store: Store, prefix: str = "") -> None:
    """Print the estimated time of the unfinished runs, and the number of runs without an estimate."""
    from expound.reports.text import format_duration
    from expound_papers.tables.estimate import estimate_time_left

    left = estimate_time_left(studies, store)
    parts = []
    if left.known:
        parts.append(f"about {format_duration(left.seconds)} of one core for {left.known} runs")
    if left.unknown:
        parts.append(f"unknown yet for {left.unknown} runs (no run of their kind is finished)")
    if parts:
        console().print(f"{prefix}left: {', '.join(parts)}", markup=False)


def show_runs(study: Study, store: Store, quiet: bool) -> None:
    """Print the missing data and models, and the title of every run."""
    for line in study.missing:
        say(f"not on this machine: {line}")
    if quiet:
        return
    for run in study.runs:
        state = "done" if store.is_done(run.cell.key) else ""
        console().print(f"{state:4}  {run.title}", markup=False)


def write_study_report(study: Study, store: Store) -> bool:
    """Write a study's report and return whether it was written; a full disk is reported, not raised."""
    from expound.errors import is_disk_full
    from expound_papers.tables.report import write_report
    from expound_papers.tables.results import collect_results

    try:
        page = write_report(collect_results(study, store), store.root / "studies" / study.name)
    except OSError as error:
        if not is_disk_full(error):
            raise
        say(f"the report could not be written: {error.strerror or error}")
        return False
    say(f"report: {page}")
    return True


def show_end(study: Study, outcome: Outcome, root: Path) -> bool:
    """Print the failed and remaining runs; return whether any run failed."""
    titles = {cell.key: cell.title for cell in study.cells}
    for key, reason in outcome.failed.items():
        say(f"failed: {titles[key]}: {reason} (see {root / 'failed' / key}.txt)")
    if outcome.full:
        say(f"the disk of {root} is full: free some space and run the same command; {len(outcome.done)} runs are saved")
    elif outcome.waiting:
        say(f"time limit reached: {outcome.waiting} runs are left; resume with the same command")
    return bool(outcome.failed)
