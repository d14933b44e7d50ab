"""A leaderboard for a terminal of any width: no word is broken; what does not fit is left out and listed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import product

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from exegete.reports.tables.cells import BEST, CHANCE, TableCell, make_cells
from exegete.reports.tables.leaderboard import CONFIDENCE, Leaderboard
from exegete.reports.text import replace_control_characters

GAP = 3
"""Width of the space between two columns."""
MAY_WRAP = 24
"""Names longer than this are wrapped between words before intervals or metrics are left out."""


@dataclass(frozen=True)
class FittedTable:
    """A leaderboard fitted to the width of the terminal: intervals are left out first, then metrics from the last.

    The first metric always stays, and seconds stay as long as two metrics fit. `plain`: mark the best with *.
    """

    board: Leaderboard
    plain: bool

    @cached_property
    def _cells(self) -> list[list[TableCell]]:
        return make_cells(self.board)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        shown, intervals = self._choose_columns(options.max_width)
        yield self._build_table(options.max_width, shown, intervals)
        yield Text(self._format_legend(shown, intervals), "" if self.plain else "dim")

    def _choose_columns(self, width: int) -> tuple[list[int], bool]:
        """Return the columns that fit beside the names, and whether their intervals fit too."""
        order = list(range(len(self.board.cards)))
        order.sort(key=lambda column: (column > 0, self.board.cards[column].name != "seconds"))
        attempts = [(order, True)] + [(order[:count], False) for count in range(len(order), 1, -1)]
        name_width = max(self._longest_word(), min(MAY_WRAP, max(map(len, self._names()))))
        for columns, intervals in attempts:
            if name_width + sum(GAP + self._width(column, intervals) for column in columns) <= width:
                return sorted(columns), intervals
        return order[:1], False

    def _build_table(self, width: int, shown: Sequence[int], intervals: bool) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        widths = {column: self._width(column, intervals) for column in shown}
        available = width - sum(GAP + column_width for column_width in widths.values())
        longest_name = max(map(len, [*self._names(), CHANCE if self.board.chance.any() else ""]))
        # rich would shrink all columns in proportion and break numbers, so the widths are fixed here.
        table.add_column("method", width=max(min(longest_name, available), self._longest_word()), overflow="fold")
        for column, column_width in widths.items():
            title = Text(replace_control_characters(self.board.cards[column].title))
            table.add_column(title, justify="right", width=column_width, overflow="fold")
        for name, at_chance, row in zip(self.board.titles, self.board.chance, self._cells, strict=True):
            cells = [_render_cell(row[column], self.plain, intervals) for column in shown]
            table.add_row(_render_name(name, at_chance), *cells)
        return table

    def _format_legend(self, shown: Sequence[int], intervals: bool) -> str:
        """Return the meaning of the marks, and which columns are left out."""
        below = []
        if intervals:
            below.append(f"its {CONFIDENCE:.0f} % bootstrap interval")
        if any(row[column].partial for row, column in product(self._cells, shown)):
            below.append("n if a metric is defined for some examples only")
        legend = f"Bold numbers are {BEST}."
        if self.plain:
            legend = f"Numbers with * are {BEST}."
        if below:
            legend += f" Below a mean: {' and '.join(below)}."
        missing = [card.heading for column, card in enumerate(self.board.cards) if column not in shown]
        if self.board.cards and not intervals:
            missing.insert(0, "intervals")
        if missing:
            legend += f" Too narrow for {', '.join(missing)}: widen the terminal or see the report."
        return legend

    def _names(self) -> list[str]:
        names = ["method"]
        for name in self.board.titles:
            names += replace_control_characters(name).split("\n")
        return names

    def _longest_word(self) -> int:
        return max(map(len, " ".join(self._names()).split()))

    def _width(self, column: int, intervals: bool) -> int:
        *words, last, arrow = replace_control_characters(self.board.cards[column].title).split(" ")
        # The arrow stays on the line of the last word.
        parts = [*words, f"{last} {arrow}"]
        for row in self._cells:
            parts += _render_cell(row[column], self.plain, intervals).plain.split("\n")
        return max(map(len, parts))


def fit_table(board: Leaderboard, *, plain: bool | None = None) -> FittedTable:
    """Return a printable table: best in bold, an arrow towards better values, 95 % intervals.

    `plain`: mark the best with * instead; default: if standard output shows no colours.
    """
    if plain is None:
        plain = has_no_colors()
    return FittedTable(board, plain)


def render_plain_table(board: Leaderboard, width: int | None = None) -> str:
    """Return the leaderboard as text without colours; default width: the terminal's, or 160 without a terminal."""
    columns = width or shutil.get_terminal_size((160, 24)).columns
    # In a notebook rich would display the table beside writing it to the file.
    console = Console(file=(out := StringIO()), width=columns, force_jupyter=False)
    console.print(fit_table(board, plain=True))
    return out.getvalue()


def has_no_colors() -> bool:
    """Return whether standard output shows no colours: a pipe, NO_COLOR, a dumb terminal."""
    console = Console()
    return not console.is_terminal or console.no_color or console.color_system is None


def _render_name(name: str, at_chance: bool) -> Text:
    text = Text(replace_control_characters(name))
    if at_chance:
        text.append(f"\n{CHANCE}", "dim")
    return text


def _render_cell(cell: TableCell, plain: bool, interval: bool) -> Text:
    text = Text().append(cell.mean, "bold" if cell.best and not plain else None)
    if plain and cell.best:
        text.append("*")
    if cell.interval and interval:
        text.append(f"\n{cell.interval.replace(' ', '')}", "dim")
    if cell.partial:
        text.append(f"\nn={cell.count}", "dim")
    return text
