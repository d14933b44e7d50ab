"""A table of texts and numbers, and its forms: Markdown, LaTeX (booktabs), CSV, and a terminal of any width.

The HTML is in `templates/table.html.j2`.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

from expound.reports.text import escape_formula, escape_latex, replace_control_characters

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

GAP = 3
"""Width of the space between two columns of a terminal."""
MAY_WRAP = 24
"""Names of rows longer than this are wrapped between words before intervals or columns are left out."""
BOLD, UNDERLINED = 1, 2
"""Ranks of cells: the best of a column, and the second."""


class Cell(NamedTuple):
    """A cell: its text, and what belongs to it.

    Attributes:
        text: on one line.
        rank: BOLD, UNDERLINED, or 0.
        mark: a sign after the text, such as †.
        interval: `low … high`, left out where there is no room.
        note: a line below, in a terminal and in HTML.
        value: what the column is sorted by.
        tip: the text that a browser shows beside the pointer.
        shade: the CSS class of its color.
    """

    text: str
    rank: int = 0
    mark: str = ""
    interval: str = ""
    note: str = ""
    value: float | str = ""
    tip: str = ""
    shade: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below a `head`; the first cell of a row is its name.

    Attributes:
        head: one text per column, empty for a table without a head; a text ends with ↑ or ↓ if that is better.
        rows: cells, or plain texts.
        title: the caption's first words.
        texts: how many columns at the left are texts; the others are numbers, aligned to the right.
        groups: a heading above several columns, with their number.
        keys: an id per row, by which scripts find it.
        important: the columns that a narrow terminal keeps, in this order; default: the first ones.
        meanings: what BOLD, an interval and a note mean, for the legend in a terminal.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    texts: int = 1
    groups: Sequence[tuple[str, int]] = ()
    keys: Sequence[str] = ()
    important: Sequence[int] = ()
    meanings: tuple[str, str, str] = ("", "", "")

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, with plain texts as cells."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]

    def to_markdown(self) -> str:
        """Return a pipe table."""
        lines = [list(self.head), ["---"] * self.texts + ["---:"] * (len(self.head) - self.texts)]
        for row in self.cells:
            texts = []
            for cell in row:
                form = {BOLD: "**{}**", UNDERLINED: "<u>{}</u>"}.get(cell.rank, "{}")
                texts.append(f"{form.format(cell.text)}{cell.mark} {cell.interval}")
            lines.append(texts)
        # A line break or an unescaped bar in a name would break the table.
        escaped = [[" ".join(text.split()).replace("|", r"\|") for text in line] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)

    def to_latex(self, caption: str = "", label: str = "") -> str:
        """Return a `table` environment; `caption` and `label` are plain text."""
        rows = []
        for row in self.cells:
            texts = []
            for cell in row:
                form = {BOLD: r"\textbf{{{}}}", UNDERLINED: r"\underline{{{}}}"}.get(cell.rank, "{}")
                text = form.format(escape_latex(cell.text)) + escape_latex(cell.mark)
                if cell.interval:
                    interval = cell.interval.replace(" … ", ", ")
                    text += rf" {{\scriptsize {escape_latex(f'[{interval}]')}}}"
                texts.append(text)
            rows.append(texts)
        return format_latex_table(self.head, rows, caption, label)

    def to_text(self, width: int | None = None) -> str:
        """Return the table as text without colors; default width: the terminal's, or 160 without a terminal."""
        from rich.console import Console

        columns = width or shutil.get_terminal_size((160, 24)).columns
        # In a notebook rich would display the table beside writing it to the file.
        console = Console(
            file=(out := io.StringIO()), width=columns, force_jupyter=False, force_terminal=False, no_color=True
        )
        console.print(self)
        return out.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable | Text]:
        """Yield the table so that no word is broken: intervals are left out first, then columns from the last."""
        from rich.text import Text

        plain = has_no_colors(console)
        shown, intervals = self._choose_columns(options.max_width, plain)
        if self.title:
            yield Text(replace_control_characters(self.title), "bold")
        yield self._make_rich_table(options.max_width, shown, intervals, plain)
        legend = self._format_legend(shown, intervals, plain)
        if legend:
            yield Text(legend, "" if plain else "dim")

    def _choose_columns(self, width: int, plain: bool) -> tuple[list[int], bool]:
        """Return the columns that fit, and whether their intervals fit too; the first two columns always stay."""
        order = list(self.important or range(1, len(self.head)))
        has_intervals = any(cell.interval for row in self.cells for cell in row)
        attempts = [(order, True)] if has_intervals else []
        attempts += [(order[:count], False) for count in range(len(order), 1, -1)]
        for columns, intervals in attempts:
            least, _ = self._measure(0, intervals, plain)
            if self.texts < len(self.head):
                longest = max(len(name) for name in (self.head[0], *(row[0].text for row in self.cells)))
                least = max(least, min(MAY_WRAP, longest))
            if least + sum(GAP + self._measure(column, intervals, plain)[0] for column in columns) <= width:
                return [0, *sorted(columns)], intervals
        return [0, *order[:1]], False

    def _measure(self, column: int, intervals: bool, plain: bool) -> tuple[int, int]:
        """Return the width of a column that breaks no word, and the width of its longest line."""
        lines = [replace_control_characters(self.head[column])]
        for row in self.cells:
            lines += _list_lines(row[column], intervals, plain)
        words = re.findall(r"\S+(?: [↑↓]$)?", "\n".join(lines), re.MULTILINE)
        least = max(map(len, words), default=1)
        if column >= self.texts:
            return least, least
        if column:
            # A path or a version would leave no room for the other columns.
            least = min(least, MAY_WRAP)
        return least, max(least, *(len(line) for text in lines for line in text.split("\n")))

    def _make_rich_table(self, width: int, shown: Sequence[int], intervals: bool, plain: bool) -> RichTable:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        sizes = {column: self._measure(column, intervals, plain) for column in shown}
        room = width + GAP - sum(GAP + least for least, _ in sizes.values())
        # rich would shrink all columns in proportion and break words, so the widths are fixed here.
        for column, (least, most) in sizes.items():
            extra = max(0, min(room, most - least))
            room -= extra
            justify: Literal["left", "right"] = "left" if column < self.texts else "right"
            head = Text(replace_control_characters(self.head[column]))
            table.add_column(head, justify=justify, width=least + extra, overflow="fold")
        for row in self.cells:
            texts = []
            for column in shown:
                first, *below = _list_lines(row[column], intervals, plain)
                text = Text().append(first, "bold" if row[column].rank == BOLD and not plain else None)
                for line in below:
                    text.append(f"\n{line}", "dim")
                texts.append(text)
            table.add_row(*texts)
        return table

    def _format_legend(self, shown: Sequence[int], intervals: bool, plain: bool) -> str:
        """Return the meaning of bold numbers and of what is below them, and which columns are left out."""
        sentences, (best, interval, note) = list[str](), self.meanings
        if best:
            sentences.append(f"{'Numbers with *' if plain else 'Bold numbers'} are {best}.")
        below = []
        if intervals:
            below.append(interval)
        if note and any(row[column].note for row in self.cells for column in shown[1:]):
            below.append(note)
        if below:
            sentences.append(f"Below a mean: {' and '.join(below)}.")
        missing = [name.rstrip(" ↑↓") for column, name in enumerate(self.head) if column not in shown]
        if interval and not intervals and len(self.head) > 1:
            missing.insert(0, "intervals")
        if missing:
            sentences.append(f"Too narrow for {', '.join(missing)}: widen the terminal.")
        return " ".join(sentences)


def has_no_colors(console: Console | None = None) -> bool:
    """Return whether a console, by default standard output, shows no colors: a pipe, NO_COLOR, a dumb terminal."""
    if console is None:
        from rich.console import Console

        console = Console()
    return not console.is_terminal or console.no_color or console.color_system is None


def _list_lines(cell: Cell, intervals: bool, plain: bool) -> list[str]:
    """Return the lines of a cell in a terminal."""
    star = "*" if plain and cell.rank == BOLD else ""
    lines = [f"{cell.text}{cell.mark}{star}"]
    if cell.interval and intervals:
        lines.append(cell.interval.replace(" ", ""))
    if cell.note:
        lines.append(cell.note)
    return [replace_control_characters(line) for line in lines]


def format_latex_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, label: str) -> str:
    """Return a `table` environment. `head`, `caption` and `label` are plain text, the cells of `rows` are LaTeX."""
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, head)) + r" \\", r"\midrule"]
    for cells in rows:
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if caption:
        lines.append(rf"\caption{{{escape_latex(caption)}}}")
    if label:
        lines.append(rf"\label{{{label}}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def format_csv(head: str, names: Sequence[str], columns: Sequence[str], ends: Mapping[str, NDArray[Any]]) -> str:
    """Return comma-separated values: a row's name, then each column's entry in each array [R, C] of `ends`.

    Floats have all their digits, and NaN is empty. A column's heading is its name with the end's name after it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_formula, [head, *(column + end for column in columns for end in ends)]))
    for row, name in enumerate(names):
        fields = [escape_formula(name)]
        for column in range(len(columns)):
            for array in ends.values():
                value = array[row, column].item()
                if isinstance(value, str):
                    fields.append(escape_formula(value))
                elif math.isnan(value):
                    fields.append("")
                else:
                    # repr gives the shortest digits that read back as the same number.
                    fields.append(repr(value))
        writer.writerow(fields)
    return out.getvalue()
