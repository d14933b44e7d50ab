"""A study's tables as numbers: center and spread over seeds, ranks, and which differences are significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from expound.errors import ExpoundError
from expound.reports.tables.leaderboard import Counts, Floats, make_leaderboard
from expound.reports.tables.significance import (
    Summands,
    adjust_p_values,
    metric_summands,
    paired_test,
)
from expound_papers.paper_table import EXAMPLES, PaperTable
from expound_papers.runs.run_files import OWN_RUN
from expound_papers.study.display import Significance, TablePart
from expound_papers.study.parts import StudyRun
from expound_papers.tables.comparable import find_differences
from expound_papers.tables.layout import (
    RUN,
    Entry,
    Line,
    TableLayout,
    center_and_spread,
    format_entry,
    get_card,
    lay_out_table,
    repeat_single_run,
)
from expound_papers.tables.predictions import prediction_summands
from expound_papers.tables.results import Results


def make_study_table(results: Results, name: str) -> PaperTable:
    """Return one of the study's tables, with the runs that are finished so far.

    Raises:
        ExpoundError: an unknown table, or a cell with several datasets, explainers or differing judgements.
    """
    layout = lay_out_table(results, name)
    if layout.part.show == EXAMPLES:
        return make_example_table(results, name, layout)
    part, rows, columns = layout.part, layout.rows, layout.columns
    numbers = np.full((3, len(rows), len(columns)), np.nan)
    count = np.zeros((len(rows), len(columns)), dtype=np.int64)
    for (row, column), own in layout.values.items():
        numbers[:, row, column] = center_and_spread(np.asarray(own, np.float64) * part.scale, part.show)
        count[row, column] = len(own)
    marked, note = _test_significance(results, layout, part.significance)
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


def _rank_cells(
    results: Results, part: TablePart, rows: Sequence[Entry], columns: Sequence[Entry], center: Floats
) -> Counts:
    """Return 1 for the best and 2 for the second of each column among rows of the same metric; ties share a rank."""
    ranks = np.zeros(center.shape, dtype=np.int64)
    for at, column in enumerate(columns):
        cards = [get_card(results, part, row, column) for row in rows]
        names = np.array([card.name for card in cards])
        for name, card in dict(zip(names, cards, strict=True)).items():
            mine = (names == name) & np.isfinite(center[:, at])
            if mine.sum() > 1:
                # Equal values share a place, and the place after them is not skipped.
                goodness = center[mine, at] if card.higher_is_better else -center[mine, at]
                distinct = np.unique(goodness)
                places = len(distinct) - np.searchsorted(distinct, goodness)
                ranks[mine, at] = np.where(places <= 2, places, 0)
    return ranks


def _test_significance(
    results: Results, layout: TableLayout, how: Significance | None
) -> tuple[NDArray[np.bool_], str]:
    """Return which cells differ significantly from the row `how.against`, and a note for the caption."""
    rows, columns = layout.rows, layout.columns
    marked: NDArray[np.bool_] = np.zeros((len(rows), len(columns)), dtype=np.bool_)
    if how is None:
        return marked, ""
    if how.method == "quartiles":
        return _compare_quartiles(results, layout, how)
    places, p_values, left_out = [], [], dict[str, None]()
    for i, row in enumerate(rows):
        against = _reference_row(row, rows, how.against)
        for j, column in enumerate(columns):
            if against is None:
                continue
            if settings := find_differences(results, layout, (against, row), column):
                title = format_entry(results, layout.part, layout.part.rows, row)
                left_out[f"{title} (other {' and '.join(settings)})"] = None
                continue
            if pairs := pair_summands(results, layout, (against, row), column):
                one, other = zip(*pairs, strict=True)
                places.append((i, j))
                p_values.append(paired_test(one, other, how.method, how.resamples))
    # One family of tests per table: the more cells, the stricter each test.
    for place, p in zip(places, adjust_p_values(p_values, how.correction), strict=True):
        marked[place] = p < how.level
    correction = {"holm": "Holm", "bh": "Benjamini–Hochberg", "none": "no"}[how.correction]
    note = (
        f"† differs from {how.against} (paired {how.method} over examples, {len(p_values)} tests, "
        f"{correction} correction, p < {how.level:g})."
    )
    return marked, f"{note} Not tested: {', '.join(left_out)}." if left_out else note


def _compare_quartiles(results: Results, layout: TableLayout, how: Significance) -> tuple[NDArray[np.bool_], str]:
    """Return which cells are better than the row `how.against` without overlap of the quartile ranges, and a note."""
    rows, columns, values = layout.rows, layout.columns, layout.values
    marked: NDArray[np.bool_] = np.zeros((len(rows), len(columns)), dtype=np.bool_)
    for (i, j), own in values.items():
        against = _reference_row(rows[i], rows, how.against)
        if against is not None and (rows.index(against), j) in values:
            other = values[rows.index(against), j]
            # Rows with other seeds would differ by them, too.
            shared = own.index.intersection(other.index)
            _, low, high = center_and_spread(np.asarray(own[shared], np.float64), "median [25–75]")
            _, bottom, top = center_and_spread(np.asarray(other[shared], np.float64), "median [25–75]")
            higher_is_better = get_card(results, layout.part, rows[i], columns[j]).higher_is_better
            marked[i, j] = low > top if higher_is_better else high < bottom
    return marked, f"† better than {how.against}: their ranges from first to third quartile do not overlap."


def _reference_row(row: Entry, rows: Sequence[Entry], against: str) -> Entry | None:
    """Return the row that differs from `row` by the value `against` alone; None for that row itself, or without one."""
    if against in row:
        return None
    for place in range(len(row)):
        entry = (*row[:place], against, *row[place + 1 :])
        if entry in rows:
            return entry
    return None


def pair_summands(
    results: Results,
    layout: TableLayout,
    rows: Sequence[Entry],
    column: Entry,
    *,
    repeat_single: bool = False,
) -> list[tuple[Summands, Summands]]:
    """Return the summands of two rows' runs, paired by seed; none for figures whose summands are not stored.

    The summands of one row are paired with zeros. `repeat_single`: pair the only run of a row with each run of the
    other row.
    """
    lines = [layout.lines.get((row, column), {}) for row in rows]
    first, second = lines[0], lines[-1]
    if repeat_single:
        first, second = repeat_single_run(first, second)
    pairs = []
    for seed in sorted(first.keys() & second.keys()):
        one = _run_summands(results, first[seed])
        if one is None:
            continue
        if len(rows) == 1:
            other: Summands | None = metric_summands(np.zeros(len(one.examples)), one.examples)
        else:
            other = _run_summands(results, second[seed])
        if other is not None:
            pairs.append((one, other))
    return pairs


def count_judged(results: Results, layout: TableLayout, row: Entry, column: Entry) -> int | None:
    """Return the number of examples that a cell's first run was judged on; None for figures of training."""
    runs = _find_judged_runs(results, next(iter(layout.lines[row, column].values())))
    return len(results.read_predictions(runs[0])) if runs else None


def has_training(results: Results, layout: TableLayout, row: Entry, column: Entry) -> bool:
    """Return whether a run of the study trained the model or the explainer of a cell."""
    study = results.study
    for line in layout.lines[row, column].values():
        explainer = study.explainers.get(line["explainer"])
        if study.recipes[line["recipe"]].is_trained or study.judgements.get(line["judgement"]):
            return True
        if explainer and OWN_RUN in explainer.spec:
            return True
    return False


def _find_judged_runs(results: Results, line: Line) -> list[StudyRun]:
    """Return the runs that judged a figure; none for figures of training."""
    if not line["judgement"]:
        return []
    return results.find_runs(**{name: line[name] for name in (*RUN, "dataset", "judgement")})


def _run_summands(results: Results, line: Line) -> Summands | None:
    """Return the per-example summands of a figure; None for figures of training, whose summands are not stored."""
    explainer = line["explainer"]
    for run in _find_judged_runs(results, line):
        if explainer in run.explainers:
            rows = results.read_examples(run)
            rows = rows[rows["explainer"] == explainer].sort_values("example")
            return metric_summands(rows[line["metric"]].to_numpy(), rows["example"].to_numpy())
        if not explainer and not run.partly:
            return prediction_summands(line["metric"], results.read_predictions(run))
    return None


def make_example_table(results: Results, name: str, layout: TableLayout) -> PaperTable:
    """Return the table, best by the first metric first; rank 1: the best of a column and all that are tied with it.

    Raises:
        ExpoundError: rows other than explainers, columns other than metrics, or several datasets or models.
    """
    part, figures = layout.part, layout.figures
    fields = ["training", "model", "recipe", "dataset", "judgement"]
    groups = figures[fields].drop_duplicates()
    if part.rows != ["explainer"] or part.columns != ["metric"] or len(groups) > 1:
        message = f"'{EXAMPLES}' is of explainers by metrics, for one training, model, recipe, dataset and judgement"
        raise ExpoundError(f"{results.study.name}: table {name}: {message}")
    columns = [column for (column,) in layout.columns]
    rows = [explainer for (explainer,) in layout.rows]
    frame = pd.DataFrame(columns=["explainer", "example", *columns])
    for place in groups.itertuples(index=False):
        runs = results.find_runs(**dict(zip(fields, place, strict=True)))
        frame = pd.concat([results.read_examples(run) for run in runs])
    # Over seeds first, since an example judged in several runs is still one example for the bootstrap.
    means = frame.groupby(["explainer", "example"], sort=False)[columns].mean().reset_index()
    means = means[means["explainer"].isin(rows)].rename(columns={"explainer": "method"})
    cards = [replace(get_card(results, part, layout.rows[0], (column,)), name=column) for column in columns]
    board = make_leaderboard(means, cards)
    return PaperTable(
        title=part.caption or name,
        head="explainer",
        rows=[format_entry(results, part, part.rows, (row,)) for row in board.rows],
        columns=[format_entry(results, part, part.columns, (column,)) for column in columns],
        center=board.mean * part.scale,
        low=board.low * part.scale,
        high=board.high * part.scale,
        count=board.count,
        rank=board.best.astype(np.int64) * part.mark_best,
        marked=np.zeros(board.mean.shape, dtype=np.bool_),
        form=part.show,
        digits=part.decimals,
    )
