"""A table in a paper's form: means with their spread, best bold, second underlined; Markdown, CSV, LaTeX, HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from exegete.reports.highlighted.highlight import template_environment
from exegete.reports.tables.cells import ABSENT, choose_decimals
from exegete.reports.tables.latex import escape_latex
from exegete.reports.tables.leaderboard import Counts, Floats

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
    """R rows and C columns of figures, ready to be drawn.

    `rows` and `columns` are what stands at the side and at the top. `center`, `low` and `high` are [R, C] and in the
    units shown; a spread ± s is low = center − s, high = center + s. `count` [R, C]: runs; `rank` [R, C]: 1 is best, 2
    second, 0 none of these; `marked` [R, C]: differs significantly. `digits`: decimals, None to choose.
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
    """The figures as text, without ranks and marks; [R][C]."""
    columns = [_format_column(table, column) for column in range(len(table.columns))]
    return [[column[row] for column in columns] for row in range(len(table.rows))]


def render_markdown(table: PaperTable) -> str:
    """A pipe table under its title; best in **bold**, second underlined."""
    lines = [_markdown_line([table.head, *table.columns]), _markdown_line(["---", *["---:"] * len(table.columns)])]
    for row, (name, cells) in enumerate(zip(table.rows, format_cells(table), strict=True)):
        shown = [_emphasize(table, row, column, text, "**{}**", "<u>{}</u>") for column, text in enumerate(cells)]
        lines.append(_markdown_line([name, *shown]))
    title = [f"**{table.title}**", ""] if table.title else []
    return "\n".join([*title, *lines, "", format_caption(table), ""])


def render_latex(table: PaperTable, label: str = "") -> str:
    """A `table` environment (package booktabs)."""
    body = []
    for row, (name, cells) in enumerate(zip(table.rows, format_cells(table), strict=True)):
        shown = [
            _emphasize(table, row, column, _escape_symbols(text), r"\textbf{{{}}}", r"\underline{{{}}}", r"$^\dagger$")
            for column, text in enumerate(cells)
        ]
        body.append(" & ".join([escape_latex(name), *shown]) + r" \\")
    head = " & ".join(map(escape_latex, [table.head, *table.columns])) + r" \\"
    frame = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", head, r"\midrule", *body]
    caption = format_caption(table)
    if table.title:
        caption = f"{table.title}. {caption}"
    named = [rf"\label{{{label}}}"] if label else []
    end = [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escape_symbols(caption)}}}", *named, r"\end{table}"]
    return "\n".join([r"\begin{table}", r"\centering", *frame, *end]) + "\n"


def render_csv(table: PaperTable) -> str:
    """Every digit: `row`, then `<column> center`, `low`, `high`, `runs`, `rank` and `significant`; undefined: empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = ("center", "low", "high", "runs", "rank", "significant")
    writer.writerow([table.head, *(f"{name} {end}" for name in table.columns for end in ends)])
    for row, name in enumerate(table.rows):
        values = [_csv_fields(table, row, column) for column in range(len(table.columns))]
        writer.writerow([name, *(text for each in values for text in each)])
    return out.getvalue()


def render_html(table: PaperTable) -> str:
    """A `<table>` with its note, to stand in a page."""
    macros = template_environment().get_template("paper_table.html.j2").module
    return str(macros.paper_table(table, format_cells(table), format_caption(table)))  # type: ignore[attr-defined]


def format_caption(table: PaperTable) -> str:
    """The caption of a table: the statistics shown over seeds, ranks, and the table's own note."""
    ranks = " Best bold, second underlined." if table.rank.any() else ""
    if table.form == EXAMPLES and ranks:
        ranks = " Bold: the best and all that are not told apart from it (paired bootstrap, Holm, 5 %)."
    return f"{NOTES[table.form]}{ranks}{f' {table.note}' if table.note else ''}"


def _format_column(table: PaperTable, column: int) -> list[str]:
    center = table.center[:, column]
    digits = choose_decimals(center) if table.digits is None else [table.digits] * len(center)
    numbers = zip(center.tolist(), table.low[:, column].tolist(), table.high[:, column].tolist(), digits, strict=True)
    return [_format_number(table.form, *each) for each in numbers]


def _format_number(form: Form, center: float, low: float, high: float, digits: int) -> str:
    if not math.isfinite(center):
        return ABSENT
    if form == "mean" or not math.isfinite(high):
        return f"{center:.{digits}f}"
    if form == EXAMPLES:
        return f"{center:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    if form == "median [25–75]":
        return f"{center:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"
    return f"{center:.{digits}f} ± {high - center:.{digits}f}"


def _emphasize(
    table: PaperTable, row: int, column: int, text: str, bold: str, underlined: str, dagger: str = "†"
) -> str:
    rank = int(table.rank[row, column])
    shown = {1: bold, 2: underlined}.get(rank, "{}").format(text)
    return f"{shown}{dagger}" if table.marked[row, column] else shown


def _escape_symbols(text: str) -> str:
    return escape_latex(text).replace("±", r"$\pm$").replace("†", r"$^\dagger$")


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _csv_fields(table: PaperTable, row: int, column: int) -> list[str]:
    values = [float(array[row, column]) for array in (table.center, table.low, table.high)]
    shown = ["" if math.isnan(value) else repr(value) for value in values]
    return [*shown, str(int(table.count[row, column])), str(int(table.rank[row, column])), *_flag(table, row, column)]


def _flag(table: PaperTable, row: int, column: int) -> list[str]:
    return ["yes" if table.marked[row, column] else "no"]
