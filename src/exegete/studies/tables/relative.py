"""Gains in per cent relative to another row, and means over fields other than the seed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pandas as pd

from exegete.studies.spec.schema import TablePart
from exegete.studies.tables.results import Results

PLACE = ("training", "model", "recipe", "dataset", "explainer", "metric")
FIELDS = ("recipe", "explainer", "training", "model")


def compute_gains(results: Results, part: TablePart, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the figures, metrics in `part.gain` as 100 · (value - reference) / |reference|, positive if better.

    The reference is the mean over seeds of the row that differs only by the named recipe, explainer, training or model.
    A gain is NaN if the reference is missing or 0.
    """
    parts = [frame[~frame["metric"].isin(part.gain)]]
    for metric, reference in part.gain.items():
        mine = frame[frame["metric"] == metric]
        field = next(name for name in FIELDS if reference in _get_declared_names(results, name))
        rest = [name for name in PLACE if name != field]
        known = mine[mine[field] == reference].groupby(rest)["value"].mean().rename("reference")
        joined = mine.join(known, on=rest)
        sign = 1 if results.get_card(metric).higher_is_better else -1
        # Dividing by a negative reference would turn the sign of the gain around.
        scale = joined["reference"].abs().where(joined["reference"] != 0)
        value = sign * 100 * (joined["value"] - joined["reference"]) / scale
        parts.append(joined.assign(value=value).drop(columns="reference"))
    return pd.concat(parts)


def average_over_fields(part: TablePart, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the figures averaged over the fields of `part.over`, which become empty."""
    if not part.over:
        return frame
    rest = [name for name in (*PLACE, "seed") if name not in part.over]
    means = frame.groupby(rest, sort=False)["value"].mean().reset_index()
    empty: dict[str, Any] = dict.fromkeys(part.over, "")
    return means.assign(judgement="", **empty)


def _get_declared_names(results: Results, field: str) -> Collection[str]:
    file = results.grid.study.file
    declared: dict[str, Collection[str]] = {
        "recipe": file.recipes, "explainer": file.explainers, "training": file.training, "model": file.models
    }  # fmt: skip
    return declared[field]
