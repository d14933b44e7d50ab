"""Facts about the runs of a page, from their records: dates, versions, machines, data, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exegete.studies.runs.estimate import format_duration
from exegete.studies.runs.study_run import StudyRun
from exegete.studies.tables.results import Results

SHOWN = ("exegete", "python", "torch", "transformers", "datasets")


def format_run_facts(results: Mapping[str, Results]) -> str:
    """Return a Markdown table of dates, versions, machines, sizes of the data, seeds, progress and cost."""
    runs: list[tuple[Results, StudyRun]] = []
    for found in results.values():
        runs += [(found, run) for run in found.grid.runs]
    records = {run.cell.key: found.store.read_record(run.cell.key) for found, run in runs}
    done = {key: record for key, record in records.items() if record is not None}
    dates = sorted({str(record.get("date", "unknown")) for record in done.values()})
    # Dictionaries serve as sets that keep the order.
    judged, trained, seeds = dict[str, None](), dict[str, None](), set[int]()
    for found, run in runs:
        if run.cell.key not in done:
            continue
        seeds.add(run.seed)
        if run.dataset:
            judged |= dict.fromkeys(_format_judged_data(run))
        else:
            trained |= dict.fromkeys(_format_training_data(found, run))
    cost = sum(record.get("cpu_seconds", record["seconds"]) for record in done.values())
    finished = f"{len(done)} of {len(records)} runs; {format_duration(cost)} of one core" if done else "nothing"
    rows = {
        "date": " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "",
        "versions": _format_versions(record["versions"] for record in done.values()),
        "machine": "; ".join(sorted({str(record.get("machine", "unknown")) for record in done.values()})),
        "training data": ", ".join(trained),
        "judged on": ", ".join(judged),
        "seeds": ", ".join(map(str, sorted(seeds))),
        "finished": finished,
    }
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items() if text)])


def _format_versions(records: Iterable[Mapping[str, str]]) -> str:
    found: dict[str, set[str]] = {}
    for record in records:
        for name in SHOWN:
            if name in record:
                found.setdefault(name, set()).add(record[name])
    return ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in found.items())


def _format_training_data(results: Results, run: StudyRun) -> list[str]:
    training = results.grid.study.file.training[run.training]
    return [_name_with_size(getattr(training, split), run.cell.config[split]) for split in ("train", "dev")]


def _format_judged_data(run: StudyRun) -> list[str]:
    limit = run.cell.config.get("limit")
    return [f"{_name_with_size(run.dataset, run.cell.config['dataset'])}{f' (some methods {limit})' if limit else ''}"]


def _name_with_size(name: str, address: Mapping[str, Any]) -> str:
    return f"{name} {address['rows']}" if "rows" in address else name
