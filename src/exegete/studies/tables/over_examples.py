"""A table of explainers by metrics with intervals over examples, and which explainers are tied with the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from exegete.reports.tables.leaderboard import make_leaderboard
from exegete.reports.tables.paper_table import EXAMPLES, PaperTable
from exegete.studies.tables.layout import TableLayout, format_entry, get_card
from exegete.studies.tables.results import Results


def make_example_table(results: Results, name: str, layout: TableLayout) -> PaperTable:
    """Return the table, best by the first metric first; rank 1: the best of a column and all that are tied with it.

    Raises:
        ExegeteError: rows other than explainers, columns other than metrics, or several datasets or models.
    """
    part, figures = layout.part, layout.figures
    fields = ["training", "model", "recipe", "dataset", "judgement"]
    groups = figures[fields].drop_duplicates()
    if part.rows != ["explainer"] or part.columns != ["metric"] or len(groups) > 1:
        message = f"'{EXAMPLES}' is of explainers by metrics, for one training, model, recipe, dataset and judgement"
        raise results.grid.study.error(("tables", name), message)
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
