"""A table as papers print it: centre and spread, best bold, second underlined; as Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from exegete.reports.highlighted.highlight import template_environment
from exegete.reports.tables.cells import ABSENT, choose_decimals
from exegete.reports.tables.leaderboard import Counts, Floats
from exegete.reports.text import escape_symbols, format_csv, format_latex_table, format_markdown_lines

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


def render_markdown(table: PaperTable) -> str:
    """Return a pipe table with its title above and its caption below."""
    lines = format_markdown_lines([table.head, *table.columns], _list_rows(table, "**{}**", "<u>{}</u>", "†", str))
    if table.title:
        lines = [f"**{table.title}**", "", *lines]
    return "\n".join([*lines, "", format_caption(table), ""])


def render_latex(table: PaperTable, label: str = "") -> str:
    """Return a `table` environment for the package booktabs."""
    caption = format_caption(table)
    if table.title:
        caption = f"{table.title}. {caption}"
    rows = _list_rows(table, r"\textbf{{{}}}", r"\underline{{{}}}", r"$^\dagger$", escape_symbols)
    return format_latex_table([table.head, *table.columns], rows, caption, label)


def render_csv(table: PaperTable) -> str:
    """Return all digits: the row's name, then per column center, low, high, runs, rank, significant; NaN is empty."""
    head = [table.head]
    for name in table.columns:
        head += [f"{name} {end}" for end in ("center", "low", "high", "runs", "rank", "significant")]
    rows = []
    for row, name in enumerate(table.rows):
        fields: list[str | float | int] = [name]
        for column in range(len(table.columns)):
            fields += [float(array[row, column]) for array in (table.center, table.low, table.high)]
            fields += [int(table.count[row, column]), int(table.rank[row, column])]
            fields.append("yes" if table.marked[row, column] else "no")
        rows.append(fields)
    return format_csv(head, rows)


def render_html(table: PaperTable) -> str:
    """Return a `<table>` with its caption, to be placed in a page."""
    macros = template_environment().get_template("paper_table.html.j2").module
    return str(macros.paper_table(table, format_cells(table), format_caption(table)))  # type: ignore[attr-defined]


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


def _list_rows(
    table: PaperTable, bold: str, underlined: str, dagger: str, escape: Callable[[str], str]
) -> list[list[str]]:
    """Return the rows with their names, as texts in which the best, the second and marked numbers are emphasized."""
    rows = []
    for row, (name, texts) in enumerate(zip(table.rows, format_cells(table), strict=True)):
        cells = [escape(name)]
        for column, text in enumerate(texts):
            form = {1: bold, 2: underlined}.get(int(table.rank[row, column]), "{}")
            mark = dagger if table.marked[row, column] else ""
            cells.append(form.format(escape(text)) + mark)
        rows.append(cells)
    return rows
