"""The card of a run's folder on the hub: task, data, figures with intervals, how to use it, the paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from exegete.data.hub import plain_card

RUN, METRICS, CONFIG = "exegete_run.json", "metrics.json", "config.json"
SHARES = ("accuracy", "exact_match")
"""Figures that are shares of examples, whose intervals follow from their number."""
PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
}


def format_hub_card(folder: Path, repo_id: str, comparison: str = "") -> str:
    """The card of a trained model or a learned explainer; `comparison` is a table of how its explanations were judged.

    What the folder does not say is left out.
    """
    run, metrics, config = (_read_json(folder / name) for name in (RUN, METRICS, CONFIG))
    made = run.get("config", {})
    explainer = config.get("explainer")
    kind = str((config.get("architectures") or [""])[0])
    pipeline = next((task for suffix, task in PIPELINES.items() if kind.endswith(suffix)), None)
    data = made.get("data", {})
    parts = [
        f"# {repo_id.rpartition('/')[2]}",
        _describe_model(run, explainer, pipeline, made.get("labels", ())),
        "## How to use",
        _format_usage(repo_id, explainer),
        *_format_section(
            "Data", [f"{name}: {each.get('source', '')} ({each['rows']} rows)" for name, each in data.items()]
        ),
        *_format_metrics(metrics, data.get("dev", {}).get("rows", 0)),
        *(["## How its explanations were judged", comparison] if comparison else []),
        *_format_section("Training", _training_lines(run, made)),
    ]
    facts = {"library_name": "exegete" if explainer else "transformers", "pipeline_tag": pipeline}
    tags = ["exegete", *(name for name in (run.get("recipe"), explainer) if name)]
    return plain_card("\n\n".join(parts) + "\n", tags=tags, **facts)


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of so many examples (Wilson 1927)."""
    z = 1.959964
    middle, half = share + z * z / (2 * count), z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _describe_model(run: Mapping[str, Any], explainer: str | None, pipeline: str | None, labels: Sequence[str]) -> str:
    made = f", trained by `{run['recipe']}` ({run['paper']})" if run.get("recipe") and run.get("paper") else ""
    if explainer:
        return f"A learned explainer, `{explainer}`{made}, made with exegete."
    named = ", ".join(labels)
    return (
        f"A model for {(pipeline or 'a task').replace('-', ' ')}{f' ({named})' if named else ''}{made}, with exegete."
    )


def _format_usage(repo_id: str, explainer: str | None) -> str:
    lines = ["import exegete", ""]
    if explainer:
        lines += [
            f'explainer = exegete.explainer("{explainer}:{repo_id}")',
            "exegete.attribute(model, text, explainer)",
        ]
    else:
        lines += [f'model = exegete.load("{repo_id}")', 'exegete.attribute(model, ["a text"])[0].top()']
    return "\n".join(["```python", *lines, "```"])


def _format_metrics(metrics: Mapping[str, Any], rows: int) -> list[str]:
    known = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    lines = [f"| {name} | {value:.4f} | {_format_interval(name, value, rows)} |" for name, value in known.items()]
    return ["## Figures on dev", "\n".join(["| | | 95 % interval |", "| --- | ---: | --- |", *lines])] if lines else []


def _format_interval(name: str, value: float, rows: int) -> str:
    if name not in SHARES or not rows or not 0 <= value <= 1:
        return "–"
    return "{:.4f} … {:.4f}".format(*wilson_interval(value, rows))


def _training_lines(run: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    lines = [f"start: {made['model']['source']}"] if "source" in made.get("model", {}) else []
    lines += [f"{name} = {value}" for name, value in made.get("arguments", {}).items()]
    lines += [f"seed = {made['seed']}"] if "seed" in made else []
    lines += [f"Departure from {run['paper']}: {departure}" for departure in run.get("departures", ())]
    return lines + [f"{name} {version}" for name, version in run.get("versions", {}).items()]


def _format_section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []
