"""Pictures on the pages of parts: a text explained and judged with a small model trained here, short runs, samples."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import examples
import first_rows

import expound
import runs
from expound.cli import app
from expound.data.cards import MetricCard
from expound.evaluation.compare.comparison import Comparison
from expound.explainers import EXPLAINERS
from expound.metrics import METRICS
from expound.models import ExplainedModel
from expound.reports.highlighted.highlight import render_fragment

COMPARED = ("decompx_linear", "integrated_gradients?n_steps=10", "occlusion", "attention_rollout", "random")
WIDTH = "100"
"""Width of the terminal that tables are printed for."""


def run_command(command: str) -> None:
    """Run a command of the pages in the current folder. A finished training is not repeated."""
    app([*shlex.split(command)[1:], "--device", "cpu", "--quiet"], standalone_mode=False)


def train_models(folder: Path) -> ExplainedModel:
    """Train and return the model `baseline`, with the commands on the pages; also train the copy for F-fidelity."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        run_command(examples.TRAINING)
        run_command(examples.COPY)
    return expound.load(folder / "baseline", device="cpu")


def methods(folder: Path) -> dict[str, str]:
    """Run each method's example and return the explanation and what is printed, as HTML.

    Methods that need another model have no picture.
    """
    return {name: _draw_method(name, folder) for name in EXPLAINERS.native if name not in examples.NOT_SHOWN}


def _draw_method(name: str, folder: Path) -> str:
    values: dict[str, Any] = {}
    with chdir(folder), redirect_stdout(StringIO()) as printed:
        exec(examples.python_code("methods", name), values)  # noqa: S102  # code of ours
    return f'{render_fragment(values["result"])}<pre class="output">{escape(printed.getvalue())}</pre>'


def metrics(model: ExplainedModel, folder: Path) -> dict[str, str]:
    """Return the table of each metric as HTML. All metrics are computed in one comparison, which saves time."""
    os.environ["COLUMNS"] = WIDTH
    rows = expound.load_data("generated", "test", limit=examples.LIMIT)
    with chdir(folder):
        table = expound.compare(model, rows, examples.JUDGED, list(map(examples.spec, METRICS.native)))
    shown = {name: _render_metrics(table, [name]) for name in METRICS.native}
    return shown | dict.fromkeys(("seconds", "peak_memory"), _render_metrics(table, ["aopc_comprehensiveness"]))


def _render_metrics(table: Comparison, names: Sequence[str]) -> str:
    """Return the verdict and the table as if only these metrics had been computed."""
    cards = [card for card in table.cards if card.name in names or card.family == "cost"]
    board = f'<pre class="output">{escape(repr(replace(table, cards=cards)))}</pre>'
    return _draw_judged_example(table, cards[0]) + board


def _draw_judged_example(table: Comparison, card: MetricCard) -> str:
    """Return the first example for which the metric is defined for every method, with its values, as HTML."""
    for _, rows in table.results.groupby("example"):
        if rows[card.name].notna().all():
            values = ", ".join(f"{row['method']} {row[card.name]:.3g}" for _, row in rows.iterrows())
            shown = render_fragment(table.attributions[row] for row in rows.index)
            return f"<p>{escape(card.title)} of three explanations of a review: {escape(values)}.</p>{shown}"
    return ""


def write(folder: Path) -> None:
    """Write all pictures to `pictures.json` in the folder, and the pages of the gallery to `gallery/`."""
    work, gallery = folder / "work", folder / "gallery"
    model = train_models(work)
    gallery.mkdir(parents=True, exist_ok=True)
    shown = {
        "methods": methods(work),
        "metrics": metrics(model, work),
        "objectives": runs.objectives(work / "baseline", work / "objectives"),
        "recipes": runs.recipes(work / "baseline", work / "recipes"),
        "datasets": first_rows.draw_samples(work / "datasets"),
    }
    (folder / "pictures.json").write_text(json.dumps(shown), encoding="utf-8")
    rows = expound.load_data("generated", "test", limit=40)
    comparison = expound.compare(model, rows, COMPARED, ["aopc_comprehensiveness", "aopc_sufficiency", "rationale_auc"])
    (gallery / "report.html").write_text(comparison.to_html(), encoding="utf-8")
    expound.attribute(model, rows.select(range(8)), method="decompx_linear").to_html(gallery / "explained.html")
