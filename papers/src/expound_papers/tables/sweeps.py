"""Metrics as curves: over a parameter of the recipes, and over the steps of training."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from expound.errors import ExpoundError
from expound.reports.figures.curves import Curve
from expound.training.loop.run import HISTORY
from expound_papers.study.display import FigurePart
from expound_papers.tables.layout import RUN, select_figures
from expound_papers.tables.results import Results

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
RUN_IN_SPEC = ("training", "model", "dataset")


def make_sweep_curves(results: Results, part: FigurePart) -> list[Curve]:
    """Return metrics over a number that differs between runs: mean and standard deviation over seeds.

    `part.over` is `parameters.NAME` or `arguments.NAME` of the recipes (runs without it are left out), or training,
    model or dataset, whose names must contain a number.

    Raises:
        ExpoundError: no finished run has such a number.
    """
    frame = select_figures(results, part.metrics, part.where)
    numbers = [_axis_value(results, part.over, row) for row in frame.to_dict("records")]
    frame = frame.assign(x=np.array(numbers, dtype=np.float64)).dropna(subset=["x"])
    if frame.empty:
        raise ExpoundError(f"no finished run has a number in {part.over!r}")
    rest = [name for name in ("training", "model", "dataset", "explainer") if name != part.over]
    # A run that several judgements share counts once.
    frame = frame.drop_duplicates([*RUN, "dataset", "explainer", "metric"])
    return _make_curves(frame, rest, part.over.rpartition(".")[2])


def make_history_curves(results: Results, part: FigurePart) -> list[Curve]:
    """Return metrics that were logged in training over its steps: mean and standard deviation over seeds."""
    rows = []
    for run in results.study.runs:
        is_selected = all(getattr(run, name) in values for name, values in part.where.items() if name in RUN)
        if run.dataset or not is_selected or not results.store.is_done(run.cell.key):
            continue
        history = json.loads((results.store.cell_folder(run.cell.key) / HISTORY).read_text(encoding="utf-8"))["history"]
        for entry in history:
            for metric in part.metrics:
                if entry.get(metric) is not None and entry.get("step") is not None:
                    rows.append((run.training, run.model, run.recipe, metric, float(entry["step"]), entry[metric]))
    frame = pd.DataFrame(rows, columns=["training", "model", "recipe", "metric", "x", "value"])
    if frame.empty:
        raise ExpoundError(f"no finished run has logged {' or '.join(part.metrics)}")
    return _make_curves(frame, ["training", "model", "recipe"], "step")


def _make_curves(frame: pd.DataFrame, fields: Sequence[str], label: str) -> list[Curve]:
    """Return one curve per metric and combination of those fields that have several values."""
    curves, by = [], [name for name in fields if frame[name].nunique() > 1]
    for key, group in frame.groupby(["metric", *by], sort=False):
        grid = group.groupby("x")["value"].agg(["mean", "std"]).fillna(0.0)
        mean, spread = grid["mean"].to_numpy(), grid["std"].to_numpy()
        metric, *others = map(str, key)
        series = " / ".join(filter(None, others)) or metric
        curves.append(Curve(series, metric, grid.index.to_numpy(), mean, mean - spread, mean + spread, label))
    return curves


def _axis_value(results: Results, over: str, row: Any) -> float:
    """Return the position of a figure on the horizontal axis; NaN if it is missing."""
    field, _, name = over.partition(".")
    if field in RUN_IN_SPEC:
        number = NUMBER.search(row[field])
        return float(number[0]) if number else float("nan")
    value = getattr(results.study.recipes[row["recipe"]], field).get(name)
    return float(value) if isinstance(value, int | float) else float("nan")
