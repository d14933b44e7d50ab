"""Figures relative to those of another row: gains in per cent; and means over fields beside seeds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pandas as pd

from exegete.studies.spec.schema import TablePart
from exegete.studies.tables.results import Results

PLACE = ("training", "model", "recipe", "dataset", "explainer", "metric")
FIELDS = ("recipe", "explainer", "training", "model")


def compute_gains(results: Results, part: TablePart, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the metrics of `part.gain` as gains: 100 · (value - reference) / |reference|, positive is better.

    The reference is the mean over seeds of the row that is the same but for the recipe, explainer, training or model
    that is named; without one, or where it is 0, a gain is NaN.
    """
    parts = [frame[~frame["metric"].isin(part.gain)]]
    for metric, reference in part.gain.items():
        mine = frame[frame["metric"] == metric]
        field = next(name for name in FIELDS if reference in _declared_names(results, name))
        rest = [name for name in PLACE if name != field]
        known = mine[mine[field] == reference].groupby(rest)["value"].mean().rename("reference")
        joined = mine.join(known, on=rest)
        sign = 1 if results.get_card(metric).higher_is_better else -1
        scale = joined["reference"].abs().where(joined["reference"] != 0)
        value = sign * 100 * (joined["value"] - joined["reference"]) / scale
        parts.append(joined.assign(value=value).drop(columns="reference"))
    return pd.concat(parts)


def average_over_fields(part: TablePart, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with one row where several differ in the fields of `part.over` alone, which are empty then."""
    if not part.over:
        return frame
    rest = [name for name in (*PLACE, "seed") if name not in part.over]
    means = frame.groupby(rest, sort=False)["value"].mean().reset_index()
    empty: dict[str, Any] = dict.fromkeys(part.over, "")
    return means.assign(judgement="", **empty)


def _declared_names(results: Results, field: str) -> Collection[str]:
    file = results.grid.study.file
    declared: dict[str, Collection[str]] = {
        "recipe": file.recipes, "explainer": file.explainers, "training": file.training, "model": file.models
    }  # fmt: skip
    return declared[field]
