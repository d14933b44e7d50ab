"""What the pages of parts show: a text explained and judged by a small model trained here, short runs, sample rows."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path

import examples
import first_rows

import exegete
import runs
from exegete.cli import app
from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS
from exegete.metrics import METRICS
from exegete.models import ExplainedModel
from exegete.reports.highlighted.highlight import render_fragment
from exegete.studies.compare.comparison import Comparison

COMPARED = ("decompx_linear", "integrated_gradients?n_steps=10", "occlusion", "attention_rollout", "random")
WIDTH = "100"
"""Columns of the terminal that tables are drawn for."""


def made(command: str) -> None:
    """Runs a command of the pages here, in the present folder; a finished training is not done again."""
    app([*shlex.split(command)[1:], "--device", "cpu", "--quiet"], standalone_mode=False)


def trained(folder: Path) -> ExplainedModel:
    """The model `baseline` of the pages and the copy that F-fidelity needs, both made by the commands on pages."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        made(examples.TRAINING)
        made(examples.COPY)
    return exegete.load(folder / "baseline", device="cpu")


def methods(model: ExplainedModel) -> dict[str, str]:
    """What the command of each method's page shows, as HTML; nothing of those that need another model."""
    return {name: _tried(partial(_picture, model, examples.spec(name))) for name in EXPLAINERS.native}


def _tried(draw: Callable[[], str]) -> str:
    """The picture; none where a part needs more than a classifier, as a masking model that is not trained."""
    try:
        return draw()
    except ExegeteError:
        return ""


def _picture(model: ExplainedModel, spec: str) -> str:
    return render_fragment(exegete.attribute(model, [examples.TEXT], method=spec))


def metrics(model: ExplainedModel, folder: Path) -> dict[str, str]:
    """What the command of each metric's page prints, as HTML. All are judged at once: none sees the others."""
    os.environ["COLUMNS"] = WIDTH
    rows = exegete.load_data("generated", "test", limit=examples.LIMIT)
    with chdir(folder):
        table = exegete.compare(model, rows, examples.JUDGED, list(map(examples.spec, METRICS.native)))
    shown = {name: _alone(table, [name]) for name in METRICS.native}
    return shown | dict.fromkeys(("seconds", "peak_memory"), _alone(table, ["aopc_comprehensiveness"]))


def _alone(table: Comparison, names: Sequence[str]) -> str:
    """The verdict and the table as if these metrics alone had been asked for."""
    cards = [card for card in table.cards if card.name in names or card.family == "cost"]
    return f'<pre class="output">{escape(repr(replace(table, cards=cards)))}</pre>'


def write(folder: Path) -> None:
    """Draws everything into `pictures.json` of the folder, and the gallery's pages into `gallery/`."""
    work, gallery = folder / "work", folder / "gallery"
    model = trained(work)
    gallery.mkdir(parents=True, exist_ok=True)
    shown = {
        "methods": methods(model),
        "metrics": metrics(model, work),
        "objectives": runs.objectives(work / "baseline", work / "objectives"),
        "recipes": runs.recipes(work / "baseline", work / "recipes"),
        "datasets": first_rows.drawn(work / "datasets"),
    }
    (folder / "pictures.json").write_text(json.dumps(shown), encoding="utf-8")
    rows = exegete.load_data("generated", "test", limit=40)
    comparison = exegete.compare(model, rows, COMPARED, ["aopc_comprehensiveness", "aopc_sufficiency", "auc"])
    (gallery / "report.html").write_text(comparison.to_html(), encoding="utf-8")
    exegete.attribute(model, rows.select(range(8)), method="decompx_linear").to_html(gallery / "explained.html")
