"""A study's tables as numbers: centre and spread over seeds, ranks, and which differences are more than chance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from exegete.data.cards import MetricCard
from exegete.errors import unknown
from exegete.reports.tables.leaderboard import Counts, Floats
from exegete.reports.tables.paper_table import EXAMPLES, Form, PaperTable
from exegete.reports.tables.significance import (
    Summands,
    adjust_p_values,
    metric_summands,
    paired_test,
    prediction_summands,
)
from exegete.studies.spec.schema import Significance, TablePart
from exegete.studies.tables.relative import average_over_fields, compute_gains
from exegete.studies.tables.results import Results

Entry = tuple[str, ...]
BySeed: TypeAlias = "pd.Series[float]"
RUN = ("training", "model", "recipe", "seed")


def make_study_table(results: Results, name: str) -> PaperTable:
    """One of the study's tables, with what is finished so far.

    Raises:
        ExegeteError: an unknown table, or figures that several judgements give differently.
    """
    laid = lay_out_table(results, name)
    if laid.part.show == EXAMPLES:
        from exegete.studies.tables.over_examples import make_example_table

        return make_example_table(results, name, laid)
    part, chosen, rows, columns, values = laid
    numbers = np.full((3, len(rows), len(columns)), np.nan)
    count = np.zeros((len(rows), len(columns)), dtype=np.int64)
    for (row, column), own in values.items():
        numbers[:, row, column] = center_and_spread(np.asarray(own, np.float64) * part.scale, part.show)
        count[row, column] = len(own)
    marked, note = _test_significance(results, part, part.significance, chosen, rows, columns)
    rank = _rank_cells(results, part, rows, columns, numbers[0]) if part.mark_best else np.zeros_like(count)
    return PaperTable(
        title=part.caption or name,
        head=" / ".join(part.rows),
        rows=[format_entry(results, part, part.rows, row) for row in rows],
        columns=[format_entry(results, part, part.columns, column) for column in columns],
        center=numbers[0],
        low=numbers[1],
        high=numbers[2],
        count=count,
        rank=rank,
        marked=marked,
        form=part.show,
        digits=part.decimals,
        note=note,
    )


class TableLayout(NamedTuple):
    """A table before anything is summed up: its part of the file, the figures it shows, and each cell's by seed."""

    part: TablePart
    chosen: pd.DataFrame
    rows: list[Entry]
    columns: list[Entry]
    values: dict[tuple[int, int], BySeed]


def lay_out_table(results: Results, name: str) -> TableLayout:
    """The figures of a table in their cells; see `make_study_table`."""
    declared = results.grid.study.file.tables
    if name not in declared:
        raise unknown("table", name, declared)
    part = declared[name]
    chosen = average_over_fields(part, compute_gains(results, part, select_figures(results, part.metrics, part.where)))
    _check_single_source(results, name, part, chosen)
    rows, columns = (_ordered_entries(results, chosen, fields) for fields in (part.rows, part.columns))
    return TableLayout(part, chosen, rows, columns, _cell_values(chosen, part, rows, columns))


def select_figures(results: Results, metrics: Sequence[str], where: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The figures of these metrics whose fields have one of the values given; an empty field passes."""
    frame = results.figures
    keep = frame["metric"].isin(metrics)
    for name, values in where.items():
        keep &= frame[name].isin(values) | (frame[name] == "")
    return frame[keep]


def center_and_spread(values: Floats, form: Form) -> tuple[float, float, float]:
    """Centre, low and high of figures over seeds; a spread needs two of them, else it is NaN."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan, np.nan, np.nan
    if form == "median [25–75]":
        low, center, high = np.percentile(known, [25, 50, 75])
        return float(center), float(low), float(high)
    center = float(known.mean())
    if form == "mean" or len(known) < 2:
        return center, np.nan, np.nan
    spread = float(known.std(ddof=1)) / (len(known) ** 0.5 if form == "mean ± se" else 1.0)
    return center, center - spread, center + spread


def _ordered_entries(results: Results, chosen: pd.DataFrame, fields: Sequence[str]) -> list[Entry]:
    """The values of the fields that occur, in the order of the study file."""
    file = results.grid.study.file
    order: dict[str, list[str]] = {
        "training": list(file.training), "model": list(file.models), "recipe": list(file.recipes),
        "dataset": list(file.datasets), "judgement": list(file.judgements), "explainer": ["", *file.explainers],
    }  # fmt: skip
    entries = {tuple(str(value) for value in row) for row in chosen[list(fields)].itertuples(index=False)}

    def place(entry: Entry) -> list[tuple[int, str]]:
        known = [order.get(name, list(file.metrics)) for name in fields]
        return [
            (names.index(value) if value in names else len(names), value)
            for names, value in zip(known, entry, strict=True)
        ]

    return sorted(entries, key=place)


def _cell_values(
    chosen: pd.DataFrame, part: TablePart, rows: Sequence[Entry], columns: Sequence[Entry]
) -> dict[tuple[int, int], BySeed]:
    """Each cell's figures, one a run, by seed."""
    at_row, at_column = ({entry: i for i, entry in enumerate(entries)} for entries in (rows, columns))
    found: dict[tuple[int, int], BySeed] = {}
    for key, group in chosen.groupby([*part.rows, *part.columns], sort=False):
        entry = tuple(map(str, key))
        place = at_row[entry[: len(part.rows)]], at_column[entry[len(part.rows) :]]
        found[place] = group.drop_duplicates(list(RUN)).set_index("seed")["value"].astype(np.float64)
    return found


def _check_single_source(results: Results, name: str, part: TablePart, chosen: pd.DataFrame) -> None:
    """A cell is over seeds alone: over datasets or explainers nobody asked for a mean."""
    fields = ["training", "model", "recipe", "dataset", "explainer", "metric"]
    free = [field for field in fields if field not in (*part.rows, *part.columns)]
    if chosen.empty or not free:
        return
    counts = chosen.groupby([*part.rows, *part.columns], sort=False)[free].nunique()
    for field in free:
        if (counts[field] > 1).any():
            values = ", ".join(map(repr, chosen[field].unique()[:4]))
            raise results.grid.study.error(
                ("tables", name), f"a cell has figures of several {field}s ({values}): name one under 'where'"
            )
    shown = [*RUN, "dataset", "explainer", "metric", *part.rows, *part.columns]
    if (chosen.groupby(list(dict.fromkeys(shown)))["value"].nunique() > 1).any():
        message = "several judgements give different figures: name one as judgement under 'where'"
        raise results.grid.study.error(("tables", name), message)


def format_entry(results: Results, part: TablePart, fields: Sequence[str], entry: Entry) -> str:
    """The label of a row or column."""
    shown = []
    for field, value in zip(fields, entry, strict=True):
        if field == "metric" and value not in part.labels:
            rises = value in part.gain or results.get_card(value).higher_is_better
            shown.append(f"{value} {'↑' if rises else '↓'}")
        else:
            shown.append(part.labels.get(value, value))
    return " / ".join(each for each in shown if each)


def get_card(results: Results, part: TablePart, row: Entry, column: Entry) -> MetricCard:
    """The facts of the metric that a cell shows; of a gain, more is better."""
    named = dict(zip((*part.rows, *part.columns), (*row, *column), strict=True))
    name = named.get("metric", part.metrics[0])
    card = results.get_card(name)
    return replace(card, higher_is_better=True) if name in part.gain else card


def _rank_cells(
    results: Results, part: TablePart, rows: Sequence[Entry], columns: Sequence[Entry], center: Floats
) -> Counts:
    """1 for the best and 2 for the second of each column, among its rows of the same metric; ties share a rank."""
    ranks = np.zeros(center.shape, dtype=np.int64)
    for at, column in enumerate(columns):
        cards = [get_card(results, part, row, column) for row in rows]
        for name in {card.name for card in cards}:
            mine = np.array([card.name == name for card in cards]) & np.isfinite(center[:, at])
            sign = 1 if next(card for card in cards if card.name == name).higher_is_better else -1
            if mine.sum() > 1:
                goodness = sign * center[mine, at]
                distinct = np.unique(goodness)
                places = len(distinct) - np.searchsorted(distinct, goodness)
                ranks[mine, at] = np.where(places <= 2, places, 0)
    return ranks


def _test_significance(
    results: Results,
    part: TablePart,
    how: Significance | None,
    chosen: pd.DataFrame,
    rows: Sequence[Entry],
    columns: Sequence[Entry],
) -> tuple[NDArray[np.bool_], str]:
    """Which cells differ from the row `how.against` in their column."""
    marked: NDArray[np.bool_] = np.zeros((len(rows), len(columns)), dtype=np.bool_)
    if how is None:
        return marked, ""
    if how.method == "quartiles":
        return _compare_quartiles(results, part, how, chosen, rows, columns)
    places, p_values = [], []
    for i, row in enumerate(rows):
        against = _reference_row(row, rows, how.against)
        for j, column in enumerate(columns):
            pairs = _paired_summands(results, part, chosen, (against, row), column) if against is not None else []
            if pairs:
                one, other = zip(*pairs, strict=True)
                places.append((i, j))
                p_values.append(paired_test(one, other, how.method, how.resamples))
    for place, p in zip(places, adjust_p_values(p_values, how.correction), strict=True):
        marked[place] = p < how.level
    correction = {"holm": "Holm", "bh": "Benjamini–Hochberg", "none": "no"}[how.correction]
    return marked, (
        f"† differs from {how.against} (paired {how.method} over examples, {len(p_values)} tests, "
        f"{correction} correction, p < {how.level:g})."
    )


def _compare_quartiles(
    results: Results,
    part: TablePart,
    how: Significance,
    chosen: pd.DataFrame,
    rows: Sequence[Entry],
    columns: Sequence[Entry],
) -> tuple[NDArray[np.bool_], str]:
    """Which cells are better than the row `how.against` in their column, quartile by quartile."""
    marked: NDArray[np.bool_] = np.zeros((len(rows), len(columns)), dtype=np.bool_)
    values = _cell_values(chosen, part, rows, columns)
    for (i, j), own in values.items():
        against = _reference_row(rows[i], rows, how.against)
        other = None if against is None else values.get((rows.index(against), j))
        if other is not None:
            (_, low, high), (_, bottom, top) = (
                center_and_spread(np.asarray(each, np.float64), "median [25–75]") for each in (own, other)
            )
            rises = get_card(results, part, rows[i], columns[j]).higher_is_better
            marked[i, j] = low > top if rises else high < bottom
    return marked, f"† better than {how.against}: their ranges from first to third quartile do not overlap."


def _reference_row(row: Entry, rows: Sequence[Entry], against: str) -> Entry | None:
    """The row that is this one but for the value `against`; None for itself and where there is none."""
    if against in row:
        return None
    near = ((*row[:place], against, *row[place + 1 :]) for place in range(len(row)))
    return next((entry for entry in near if entry in rows), None)


def _paired_summands(
    results: Results, part: TablePart, chosen: pd.DataFrame, rows: tuple[Entry, Entry], column: Entry
) -> list[tuple[Summands, Summands]]:
    """The summands of both rows' runs that have the same seed."""
    found = []
    for row in rows:
        named = dict(zip((*part.rows, *part.columns), (*row, *column), strict=True))
        keep = np.logical_and.reduce([chosen[name] == value for name, value in named.items()])
        mine = chosen[keep].drop_duplicates(list(RUN))
        found.append(dict(zip(mine["seed"].tolist(), mine.to_dict("records"), strict=True)))
    seeds = sorted(found[0].keys() & found[1].keys())
    both = [tuple(_run_summands(results, lines[seed]) for lines in found) for seed in seeds]
    return [(one, other) for one, other in both if one is not None and other is not None]


def _run_summands(results: Results, line: Mapping[Hashable, Any]) -> Summands | None:
    """The per-example terms of a figure; None for figures of training, whose terms are not stored."""
    fields = {name: line[name] for name in (*RUN, "dataset", "judgement")}
    runs = results.find_runs(**fields) if line["judgement"] else []
    explainer = line["explainer"]
    run = next((each for each in runs if explainer in each.explainers or not (explainer or each.partly)), None)
    if run is None:
        return None
    if not explainer:
        return prediction_summands(line["metric"], results.read_predictions(run))
    rows = results.read_examples(run)
    rows = rows[rows["explainer"] == explainer].sort_values("example")
    return metric_summands(rows[line["metric"]].to_numpy(), rows["example"].to_numpy())
