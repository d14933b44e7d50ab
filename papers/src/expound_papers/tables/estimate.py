"""The progress of a study, and estimates of time: unfinished runs take the mean time of finished ones of their kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple, TypeAlias

from expound_papers.runs.store import FIGURES_ONLY, Cell, Store
from expound_papers.study.parts import StudyRun
from expound_papers.study.study import Study

Kind: TypeAlias = tuple[object, ...]
DURATIONS = ("num_train_epochs", "max_steps")


class TimeLeft(NamedTuple):
    """The estimated CPU seconds of `known` unfinished runs; of `unknown` others no run of the kind is finished."""

    seconds: float
    known: int
    unknown: int


def estimate_time_left(studies: Sequence[Study], store: Store) -> TimeLeft:
    """Estimate the CPU time of the unfinished runs of some studies; a run that several share counts once."""
    unfinished, times = dict[str, Kind](), dict[Kind, list[float]]()
    for study in studies:
        for run in study.runs:
            kind = (study.name, *_kind_of(run))
            if not store.is_done(run.cell.key):
                unfinished[run.cell.key] = kind
            elif seconds := _cpu_seconds(run.cell, store):
                times.setdefault(kind, []).append(seconds)
    means = [fmean(times[kind]) for kind in unfinished.values() if kind in times]
    return TimeLeft(sum(means), len(means), len(unfinished) - len(means))


def sum_time_spent(cells: Iterable[Cell], store: Store) -> float:
    """Return the CPU seconds that finished runs took in this store."""
    seconds = 0.0
    for cell in cells:
        seconds += _cpu_seconds(cell, store)
    return seconds


def _kind_of(run: StudyRun) -> Kind:
    """Return what a run's time depends on: the recipe or judgement, the model and the data, but not the seed."""
    config = run.cell.config
    if run.judgement:
        # The judged model's recipe does not matter: a pass takes as long in models of one architecture.
        return run.judgement, run.model, run.dataset, config.get("limit")
    arguments = config["arguments"]
    return config["recipe"], run.model, run.training, *(arguments.get(name) for name in DURATIONS)


def _cpu_seconds(cell: Cell, store: Store) -> float:
    """Return the CPU seconds of a finished run; 0 for an unfinished one and for figures imported from elsewhere."""
    record = store.read_record(cell.key)
    if record is None or record.get(FIGURES_ONLY):
        return 0.0
    return float(record.get("cpu_seconds", 0.0))


class StudyStatus(NamedTuple):
    """The numbers of all and of finished runs by kind (`train`, `judge`), reasons of failures by title, CPU seconds."""

    total: Counter[str]
    done: Counter[str]
    failed: dict[str, str]
    seconds: float


def get_status(study: Study, store: Store) -> StudyStatus:
    """Return the state of a study's runs in a store."""
    total, done, failed = Counter[str](), Counter[str](), dict[str, str]()
    for cell in study.cells:
        kind = str(cell.config["kind"])
        total[kind] += 1
        if store.is_done(cell.key):
            done[kind] += 1
        elif store.failure_path(cell.key).exists():
            failed[cell.title] = store.failure_reason(cell.key)
    return StudyStatus(total, done, failed, sum_time_spent(study.cells, store))
