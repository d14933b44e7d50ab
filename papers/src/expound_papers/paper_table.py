"""A table as papers print it: center and spread, best bold, second underlined; as Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from expound.reports.table import Cell, Table, format_csv
from expound.reports.tables.board_table import ABSENT, choose_decimals
from expound.reports.tables.leaderboard import Counts, Floats

EXAMPLES: Final = "mean [95 %]"
Form = Literal["mean ± sd", "mean ± se", "median [25–75]", "mean", "mean [95 %]"]
NOTES = {
    "mean ± sd": "Mean and standard deviation over seeds.",
    "mean ± se": "Mean and standard error over seeds.",
    "median [25–75]": "Median and quartiles over seeds.",
    "mean": "Mean over seeds.",
    EXAMPLES: "Mean over examples with its bootstrap interval.",
}


@dataclass(frozen=True, slots=True, eq=False)
class PaperTable:
    """R rows and C columns of numbers, ready to be rendered.

    Attributes:
        title: the caption's first words.
        head: the heading of the column of row names.
        rows: [R] names.
        columns: [C] headings.
        center: [R, C] in the units shown; NaN for an empty cell.
        low: [R, C] the spread's lower end: center − s for a spread ± s.
        high: [R, C] its upper end.
        count: [R, C] runs, or examples in the form EXAMPLES.
        rank: [R, C] 1 for the best of a column, 2 for the second, 0 for all others.
        marked: [R, C] whether a cell gets a dagger, whose meaning `note` explains.
        form: the statistics shown.
        digits: decimals; None: chosen by the size of the numbers.
        note: a sentence added to the caption.
    """

    title: str
    head: str
    rows: Sequence[str]
    columns: Sequence[str]
    center: Floats
    low: Floats
    high: Floats
    count: Counts
    rank: Counts
    marked: NDArray[np.bool_]
    form: Form = "mean ± sd"
    digits: int | None = None
    note: str = ""


def format_cells(table: PaperTable) -> list[list[str]]:
    """Return the numbers as text, without emphasis and daggers, [R][C]."""
    rows: list[list[str]] = [[] for _ in table.rows]
    for column in range(len(table.columns)):
        for row, text in zip(rows, _format_column(table, column), strict=True):
            row.append(text)
    return rows


def make_table(paper: PaperTable) -> Table:
    """Return the table with its numbers as text: best bold, second underlined, daggers."""
    rows = []
    for row, (name, texts) in enumerate(zip(paper.rows, format_cells(paper), strict=True)):
        cells = [Cell(name)]
        for column, text in enumerate(texts):
            mark = "†" if paper.marked[row, column] else ""
            cells.append(Cell(text, int(paper.rank[row, column]), mark, tip=f"{paper.count[row, column]} runs"))
        rows.append(cells)
    return Table([paper.head, *paper.columns], rows, paper.title)


def render_markdown(table: PaperTable) -> str:
    """Return a pipe table with its title above and its caption below."""
    title = f"**{table.title}**\n\n" if table.title else ""
    return f"{title}{make_table(table).to_markdown()}\n\n{format_caption(table)}\n"


def render_latex(table: PaperTable, label: str = "") -> str:
    """Return a `table` environment for the package booktabs."""
    caption = format_caption(table)
    if table.title:
        caption = f"{table.title}. {caption}"
    return make_table(table).to_latex(caption, label)


def render_csv(table: PaperTable) -> str:
    """Return all digits: the row's name, then per column center, low, high, runs, rank, significant; NaN is empty."""
    significant = np.where(table.marked, "yes", "no")
    ends = {" center": table.center, " low": table.low, " high": table.high, " runs": table.count, " rank": table.rank}
    return format_csv(table.head, table.rows, table.columns, ends | {" significant": significant})


def format_caption(table: PaperTable) -> str:
    """Return the caption: which statistics are shown, what bold numbers mean, and the table's own note."""
    sentences = [NOTES[table.form]]
    if table.rank.any() and table.form == EXAMPLES:
        sentences.append("Bold: the best and all that are not significantly worse (paired bootstrap, Holm, 5 %).")
    elif table.rank.any():
        sentences.append("Best bold, second underlined.")
    if table.note:
        sentences.append(table.note)
    return " ".join(sentences)


def _format_column(table: PaperTable, column: int) -> list[str]:
    centers = table.center[:, column]
    digits = choose_decimals(centers) if table.digits is None else [table.digits] * len(centers)
    texts = []
    for row, places in enumerate(digits):
        center, low, high = (float(array[row, column]) for array in (table.center, table.low, table.high))
        texts.append(_format_number(table.form, center, low, high, places))
    return texts


def _format_number(form: Form, center: float, low: float, high: float, digits: int) -> str:
    if not math.isfinite(center):
        return ABSENT
    # A single run has no spread.
    if form == "mean" or not math.isfinite(high):
        return f"{center:.{digits}f}"
    if form == EXAMPLES:
        return f"{center:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    if form == "median [25–75]":
        return f"{center:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"
    return f"{center:.{digits}f} ± {high - center:.{digits}f}"
