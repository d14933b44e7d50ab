"""The card of a run's folder on the Hugging Face Hub: task, data, metrics with intervals, usage, paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expound.data.hub import make_card, read_json_object
from expound.reports.table import Table
from expound.reports.tables.leaderboard import wilson_interval

RUN, METRICS, CONFIG = "expound_run.json", "metrics.json", "config.json"
SHARES = ("accuracy", "exact_match")
"""Metrics that are shares of examples, whose intervals follow from the number of examples."""
PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
}


def format_hub_card(folder: Path, repo_id: str, comparison: str = "") -> str:
    """Return the card of a trained model or a learned explainer; facts that the folder lacks are left out.

    `comparison`: a Markdown table of how its explanations were judged.
    """
    run, metrics, config = (read_json_object(folder / name) for name in (RUN, METRICS, CONFIG))
    run_config = run.get("config", {})
    explainer = config.get("explainer")
    architecture = str((config.get("architectures") or [""])[0])
    pipeline = next((task for suffix, task in PIPELINES.items() if architecture.endswith(suffix)), None)
    data = run_config.get("data", {})
    data_lines = [f"{name}: {part.get('source', '')} ({part['rows']} rows)" for name, part in data.items()]
    parts = [
        f"# {repo_id.rpartition('/')[2]}",
        _describe_model(run, explainer, pipeline, run_config.get("labels", ())),
        "## How to use",
        _format_usage(repo_id, explainer),
        *_format_section("Data", data_lines),
        *_format_metrics(metrics, data.get("dev", {}).get("rows", 0)),
    ]
    if comparison:
        parts += ["## How its explanations were judged", comparison]
    parts += _format_section("Training", _training_lines(run, run_config))
    facts = {"library_name": "transformers", "pipeline_tag": pipeline}
    if explainer:
        facts["library_name"] = "expound"
    tags = ["expound", *(name for name in (run.get("recipe"), explainer) if name)]
    return make_card("\n\n".join(parts) + "\n", tags=tags, **facts)


def _describe_model(run: Mapping[str, Any], explainer: str | None, pipeline: str | None, labels: Sequence[str]) -> str:
    recipe = ""
    if run.get("recipe") and run.get("paper"):
        recipe = f", trained by `{run['recipe']}` ({run['paper']})"
    if explainer:
        return f"A learned explainer, `{explainer}`{recipe}, made with expound."
    task = (pipeline or "a task").replace("-", " ")
    classes = f" ({', '.join(labels)})" if labels else ""
    return f"A model for {task}{classes}{recipe}, with expound."


def _format_usage(repo_id: str, explainer: str | None) -> str:
    lines = ["import expound", ""]
    if explainer:
        lines += [
            f'explainer = expound.explainer("{explainer}:{repo_id}")',
            "expound.attribute(model, text, explainer)",
        ]
    else:
        lines += [f'model = expound.load("{repo_id}")', 'expound.attribute(model, ["a text"])[0].top()']
    return "\n".join(["```python", *lines, "```"])


def _format_metrics(metrics: Mapping[str, Any], rows: int) -> list[str]:
    figures = []
    for name, value in metrics.items():
        if isinstance(value, int | float):
            figures.append((name, f"{value:.4f}", _format_interval(name, value, rows)))
    if not figures:
        return []
    return ["## Figures on dev", Table(("", "", "95 % interval"), figures).to_markdown()]


def _format_interval(name: str, value: float, rows: int) -> str:
    if name not in SHARES or not rows or not 0 <= value <= 1:
        return "–"
    return "{:.4f} … {:.4f}".format(*wilson_interval(value, rows))


def _training_lines(run: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    lines = []
    if "source" in config.get("model", {}):
        lines.append(f"start: {config['model']['source']}")
    lines += [f"{name} = {value}" for name, value in config.get("arguments", {}).items()]
    if "seed" in config:
        lines.append(f"seed = {config['seed']}")
    lines += [f"Departure from {run['paper']}: {departure}" for departure in run.get("departures", ())]
    return lines + [f"{name} {version}" for name, version in run.get("versions", {}).items()]


def _format_section(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)]
