"""The two kinds of runs, and the files that they leave; the work itself is imported when it begins."""

from __future__ import annotations

from exegete.studies.runs.store import Cell, Workspace

FIGURES = "figures.json"
PREDICTIONS = "predictions.parquet"
RESULTS, CURVES = "results.parquet", "curves.parquet"
ATTRIBUTIONS, LAYERS = "attributions", "layers.parquet"


def train_model(cell: Cell, space: Workspace) -> None:
    """Trains a model, see `work.train_model`."""
    from exegete.studies.runs import work

    work.train_model(cell, space)


def judge_model(cell: Cell, space: Workspace) -> None:
    """Judges a model on a dataset, see `work.judge_model`."""
    from exegete.studies.runs import work

    work.judge_model(cell, space)
