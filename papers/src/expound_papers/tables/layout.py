"""The layout of a study's tables: which figures of finished runs belong to which cell."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from expound.data.cards import MetricCard
from expound.errors import ExpoundError, check_choice
from expound.reports.tables.leaderboard import Floats
from expound_papers.paper_table import Form
from expound_papers.study.display import TablePart
from expound_papers.tables.results import Results

Entry = tuple[str, ...]
BySeed: TypeAlias = "pd.Series[float]"
Line: TypeAlias = Mapping[Hashable, Any]
T = TypeVar("T")
RUN = ("training", "model", "recipe", "seed")
PLACE = ("training", "model", "recipe", "dataset", "explainer", "metric")


class TableLayout(NamedTuple):
    """A table before its cells are summarized.

    `part`: its part of the study file. `figures`: the rows of `Results.figures` that it shows. `lines`: the rows of
    `figures` that belong to each cell (row, column), by seed. `values`: their figures.
    """

    part: TablePart
    figures: pd.DataFrame
    rows: list[Entry]
    columns: list[Entry]
    lines: dict[tuple[Entry, Entry], dict[int, Line]]
    values: dict[tuple[int, int], BySeed]


def lay_out_table(results: Results, name: str) -> TableLayout:
    """Return the figures of a table in their cells; see `make_study_table`. A table is laid out once."""
    check_choice("table", name, results.study.tables)
    if name not in results.layouts:
        results.layouts[name] = _lay_out_table(results, name)
    layout: TableLayout = results.layouts[name]
    return layout


def _lay_out_table(results: Results, name: str) -> TableLayout:
    part = results.study.tables[name]
    figures = average_over_fields(part, compute_gains(results, part, select_figures(results, part.metrics, part.where)))
    _check_single_source(results, name, part, figures)
    rows, columns = (
        _sort_entries(results, part, figures, part.rows),
        _sort_entries(results, part, figures, part.columns),
    )
    lines = _group_lines(figures, part)
    values = {}
    for (row, column), cell in lines.items():
        by_seed = {seed: line["value"] for seed, line in cell.items()}
        values[rows.index(row), columns.index(column)] = pd.Series(by_seed, dtype=np.float64)
    return TableLayout(part, figures, rows, columns, lines, values)


def select_figures(results: Results, metrics: Sequence[str], where: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return the figures of these metrics whose fields have one of the values in `where`; an empty field passes."""
    frame = results.figures
    keep = frame["metric"].isin(metrics)
    for name, values in where.items():
        # Figures of the model itself have no explainer, and figures of training no judgement.
        keep &= frame[name].isin(values) | (frame[name] == "")
    return frame[keep]


def center_and_spread(values: Floats, form: Form) -> tuple[float, float, float]:
    """Return center, low and high of the finite figures over seeds; the spread of a single one is NaN."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan, np.nan, np.nan
    if form == "median [25–75]":
        low, center, high = np.percentile(known, [25, 50, 75])
        return float(center), float(low), float(high)
    center = float(known.mean())
    if form == "mean" or len(known) < 2:
        return center, np.nan, np.nan
    spread = float(known.std(ddof=1))
    if form == "mean ± se":
        spread /= len(known) ** 0.5
    return center, center - spread, center + spread


def _sort_entries(results: Results, part: TablePart, figures: pd.DataFrame, fields: Sequence[str]) -> list[Entry]:
    """Return the combinations of the fields' values that occur, in the order of `where`, or else of the study."""
    study = results.study
    order: dict[str, list[str]] = {
        "training": list(study.trainings), "model": list(study.models), "recipe": list(study.recipes),
        "dataset": list(study.datasets), "judgement": list(study.judgements), "explainer": list(study.explainers),
    }  # fmt: skip
    order["metric"] = list(part.metrics)
    order |= {name: list(values) for name, values in part.where.items()}
    # The figures of the model itself, which have no explainer, come first.
    order["explainer"] = ["", *order["explainer"]]

    def place(entry: Entry) -> list[tuple[int, str]]:
        places = []
        for field, value in zip(fields, entry, strict=True):
            names = order[field]
            number = names.index(value) if value in names else len(names)
            places.append((number, value))
        return places

    return sorted(set(figures[list(fields)].astype(str).itertuples(index=False, name=None)), key=place)


def _group_lines(figures: pd.DataFrame, part: TablePart) -> dict[tuple[Entry, Entry], dict[int, Line]]:
    """Return the figures of each cell (row, column) as records, by seed."""
    lines: dict[tuple[Entry, Entry], dict[int, Line]] = {}
    for line in figures.to_dict("records"):
        row, column = (tuple(str(line[field]) for field in fields) for fields in (part.rows, part.columns))
        # Several judgements may repeat a figure of the same run.
        lines.setdefault((row, column), {}).setdefault(int(line["seed"]), line)
    return lines


def _check_single_source(results: Results, name: str, part: TablePart, figures: pd.DataFrame) -> None:
    """Raise ExpoundError if a cell mixes several datasets, explainers or judgements: only seeds are averaged."""
    fields = ["training", "model", "recipe", "dataset", "explainer", "metric"]
    free = [field for field in fields if field not in (*part.rows, *part.columns)]
    if figures.empty or not free:
        return
    counts = figures.groupby([*part.rows, *part.columns], sort=False)[free].nunique()
    for field in free:
        if (counts[field] > 1).any():
            values = ", ".join(map(repr, figures[field].unique()[:4]))
            raise ExpoundError(
                f"{results.study.name}: table {name}: a cell has figures of several {field}s ({values}): name one"
            )
    shown = [*RUN, "dataset", "explainer", "metric", *part.rows, *part.columns]
    if (figures.groupby(list(dict.fromkeys(shown)))["value"].nunique() > 1).any():
        message = "several judgements give different figures: name one as judgement in 'where'"
        raise ExpoundError(f"{results.study.name}: table {name}: {message}")


def format_entry(results: Results, part: TablePart, fields: Sequence[str], entry: Entry) -> str:
    """Return the heading of a row or column."""
    shown = []
    for field, value in zip(fields, entry, strict=True):
        if field == "metric" and value not in part.labels:
            higher_is_better = value in part.gain or results.get_card(value).higher_is_better
            arrow = "↑" if higher_is_better else "↓"
            shown.append(f"{value} {arrow}")
        else:
            shown.append(part.labels.get(value, value))
    return " / ".join(filter(None, shown))


def get_card(results: Results, part: TablePart, row: Entry, column: Entry) -> MetricCard:
    """Return the card of the metric that a cell shows, for gains with higher_is_better=True."""
    name = get_metric(part, row, column)
    card = results.get_card(name)
    return replace(card, higher_is_better=True) if name in part.gain else card


def get_metric(part: TablePart, row: Entry, column: Entry) -> str:
    """Return the name of the metric that a cell shows."""
    names: dict[str, str] = dict(zip((*part.rows, *part.columns), (*row, *column), strict=True))
    return names.get("metric", part.metrics[0])


def repeat_single_run(one: dict[int, T], other: dict[int, T]) -> tuple[dict[int, T], dict[int, T]]:
    """Return two rows' runs by seed; the only run of a row gets each seed of the other row."""
    if len(one) == 1 < len(other):
        one = dict.fromkeys(other, *one.values())
    elif len(other) == 1 < len(one):
        other = dict.fromkeys(one, *other.values())
    return one, other


def compute_gains(results: Results, part: TablePart, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the figures, metrics in `part.gain` as 100 · (value - reference) / |reference|, positive if better.

    The reference is the mean over seeds of the row that differs only by the named recipe, explainer, training or model.
    A gain is NaN if the reference is missing or 0.
    """
    study = results.study
    declared: dict[str, Collection[str]] = {
        "recipe": study.recipes, "explainer": study.explainers, "training": study.trainings, "model": study.models
    }  # fmt: skip
    parts = [frame[~frame["metric"].isin(part.gain)]]
    for metric, reference in part.gain.items():
        mine = frame[frame["metric"] == metric]
        field = next(field for field, names in declared.items() if reference in names)
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
