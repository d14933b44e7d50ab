"""What the pages of parts show: a text explained and judged by a small model trained here, short runs, sample rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import first_rows
from torch import Tensor

import exegete
import runs
from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS
from exegete.metrics import METRICS
from exegete.models import Batch, ExplainedModel
from exegete.reports.highlighted.highlight import fragment

SEED = 3
"""Draws the text that is explained."""
COMPARED = ("decompx_linear", "integrated_gradients?n_steps=10", "occlusion", "attention_rollout", "random")
JUDGED = ("occlusion", "attention_rollout", "random")
SMALL = {
    "context_cite": {"n_samples": 48},
    "reagent": {"steps": 40},
    "solvex": {"beam": 5},
    "smooth_grad": {"n_samples": 20},
}
"""Parameters at which a page's picture is drawn in a second."""


def trained(folder: Path) -> ExplainedModel:
    """A BERT of two layers, trained on generated reviews; a finished training is not done again."""
    from exegete.training import train_baseline

    train, dev = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev"))
    arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
    train_baseline("tiny", train, dev, folder, arguments=arguments, masked_share=0.1)
    return exegete.load(folder, device="cpu")


def drawn(model: ExplainedModel) -> dict[str, dict[str, str]]:
    """An HTML fragment for each method and metric that needs nothing but a classifier, by folder and id."""
    row = exegete.load_data("generated", "test", limit=1, seed=SEED)[0]
    methods = {name: card for name, card in EXPLAINERS.cards(MethodCard).items() if name in EXPLAINERS.native}
    specs = {name: f"{name}?untrained" if card.learned else name for name, card in methods.items()}
    shown = {name: _tried(partial(_picture, model, row, spec)) for name, spec in specs.items()}
    judged = [exegete.attribute(model, [row], method=method)[0] for method in JUDGED]
    batch = model.encode([row])
    scores = {method: exegete.explainer(method).attribute(model, batch) for method in JUDGED}
    values = {name: _tried(partial(_values, model, batch, scores, name)) for name in METRICS.native}
    return {"methods": shown, "metrics": {name: text and text + fragment(judged) for name, text in values.items()}}


def _tried(draw: Callable[[], str]) -> str:
    """The picture; none where a part needs more than a classifier, as a masking model that is not trained."""
    try:
        return draw()
    except ExegeteError:
        return ""


def _picture(model: ExplainedModel, row: dict[str, Any], spec: str) -> str:
    return fragment(exegete.attribute(model, [row], method=exegete.explainer(spec, **SMALL.get(spec, {}))))


def _values(model: ExplainedModel, batch: Batch, scores: dict[str, Tensor], name: str) -> str:
    """The metric's value of each method's attribution of one text."""
    judge = exegete.metric(name)
    values = {method: float(judge.judge(model, batch, each)[name][0]) for method, each in scores.items()}
    shown = ", ".join(f"{method} <strong>{value:.3f}</strong>" for method, value in values.items())
    return f"<p>{name}: {shown}</p>"


def write(folder: Path) -> None:
    """Draws everything into `pictures.json` of the folder, and the gallery's pages into `gallery/`."""
    work, gallery = folder / "work", folder / "gallery"
    model = trained(work / "baseline")
    gallery.mkdir(parents=True, exist_ok=True)
    shown = {
        **drawn(model),
        "objectives": runs.objectives(work / "baseline", work / "objectives"),
        "recipes": runs.recipes(work / "baseline", work / "recipes"),
        "datasets": first_rows.drawn(work / "datasets"),
    }
    (folder / "pictures.json").write_text(json.dumps(shown), encoding="utf-8")
    rows = exegete.load_data("generated", "test", limit=40)
    comparison = exegete.compare(model, rows, COMPARED, ["aopc_comprehensiveness", "aopc_sufficiency", "auc"])
    (gallery / "report.html").write_text(comparison.to_html(), encoding="utf-8")
    exegete.attribute(model, rows.select(range(8)), method="decompx_linear").to_html(gallery / "explained.html")
