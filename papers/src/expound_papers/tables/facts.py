"""Facts about the runs of a page, from their records: dates, versions, machines, data, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expound.reports.text import format_duration
from expound_papers.study.parts import StudyRun
from expound_papers.tables.comparable import describe_training
from expound_papers.tables.results import Results

SHOWN = ("expound", "python", "torch", "transformers", "datasets")


def format_run_facts(results: Mapping[str, Results]) -> str:
    """Return a Markdown table of dates, versions, machines, sizes of the data, seeds, progress and cost."""
    keys, done = set[str](), dict[str, Mapping[str, Any]]()
    # Dictionaries serve as sets that keep the order.
    judged, trained, seeds = dict[str, None](), dict[str, None](), set[int]()
    ways: dict[str, dict[str, None]] = {}
    for found in results.values():
        for run in found.study.runs:
            keys.add(run.cell.key)
            record = found.store.read_record(run.cell.key)
            if record is None:
                continue
            done[run.cell.key] = record
            seeds.add(run.seed)
            if run.dataset:
                judged[_format_judged_data(run)] = None
            else:
                training = found.study.trainings[run.training]
                trained[_name_with_size(training.train.name, run.cell.config["train"])] = None
                trained[_name_with_size(training.dev.name, run.cell.config["dev"])] = None
                ways.setdefault(_format_settings(run), {})[run.recipe] = None
    dates, machines, versions, cost = set[str](), set[str](), dict[str, set[str]](), 0.0
    for record in done.values():
        dates.add(str(record.get("date", "unknown")))
        machines.add(str(record.get("machine", "unknown")))
        cost += record.get("cpu_seconds", record["seconds"])
        for name in SHOWN:
            if name in record["versions"]:
                versions.setdefault(name, set()).add(record["versions"][name])
    rows = {
        "date": " to ".join(dict.fromkeys([min(dates, default=""), max(dates, default="")])),
        "versions": ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in versions.items()),
        "machine": "; ".join(sorted(machines)),
        "training data": ", ".join(trained),
        "trained with": "; ".join(f"{way}: {', '.join(names)}" for way, names in ways.items()),
        "judged on": ", ".join(judged),
        "seeds": ", ".join(map(str, sorted(seeds))),
        "finished": f"{len(done)} of {len(keys)} runs; {format_duration(cost)} of one core" if done else "nothing",
    }
    lines = ["| | |", "| --- | --- |"]
    for name, text in rows.items():
        if text:
            lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def _format_judged_data(run: StudyRun) -> str:
    name, limit = _name_with_size(run.dataset, run.cell.config["dataset"]), run.cell.config.get("limit")
    return f"{name} (some methods {limit})" if limit else name


def _format_settings(run: StudyRun) -> str:
    """Return the learning rate, the length and the batch size of a training."""
    settings = describe_training(run.cell)
    rate, batch = settings["rate"], settings["batch"]
    texts = [f"rate {rate:g}" if rate else "", settings["steps"], f"batches of {batch}" if batch else ""]
    return ", ".join(filter(None, texts))


def _name_with_size(name: str, address: Mapping[str, Any]) -> str:
    return f"{name} {address['rows']}" if "rows" in address else name
