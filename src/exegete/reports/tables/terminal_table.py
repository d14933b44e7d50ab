"""A leaderboard for a terminal of any width: no word is broken; what does not fit is left out, and named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from exegete.reports.highlighted.pieces import replace_control_characters
from exegete.reports.tables.cells import BEST, CHANCE, TableCell, make_cells
from exegete.reports.tables.leaderboard import CONFIDENCE, Leaderboard

GAP = 3
"""Columns between two columns."""
MAY_WRAP = 24
"""Names longer than this are wrapped between words before anything is left out."""


@dataclass(frozen=True)
class FittedTable:
    """The leaderboard as the terminal's width allows: first intervals are left out, then metrics, the last first.

    The first metric always stays, and seconds as long as two metrics fit. `plain`: the best is marked with *.
    """

    board: Leaderboard
    plain: bool

    @cached_property
    def _cells(self) -> list[list[TableCell]]:
        return make_cells(self.board)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        shown, intervals = self._fitting(options.max_width)
        yield self._drawn(options.max_width, shown, intervals)
        yield Text(self._legend(shown, intervals), "dim" if not self.plain else "")

    def _fitting(self, width: int) -> tuple[list[int], bool]:
        """The columns that fit beside the names, and whether with intervals."""
        order = list(range(len(self.board.cards)))
        order.sort(key=lambda column: (column > 0, self.board.cards[column].name != "seconds"))
        tries = [(order, True)] + [(order[:count], False) for count in range(len(order), 1, -1)]
        for columns, intervals in tries:
            if self._name_width() + sum(GAP + self._width(column, intervals) for column in columns) <= width:
                return sorted(columns), intervals
        return order[:1], False

    def _drawn(self, width: int, shown: Sequence[int], intervals: bool) -> Table:
        drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        widths = {column: self._width(column, intervals) for column in shown}
        room = width - sum(GAP + each for each in widths.values())
        names = max(map(len, [*self._names(), CHANCE if self.board.chance.any() else ""]))
        drawn.add_column("method", width=max(min(names, room), self._longest()), overflow="fold")
        for column, wide in widths.items():
            drawn.add_column(
                Text(replace_control_characters(self.board.cards[column].title)),
                justify="right",
                width=wide,
                overflow="fold",
            )
        for name, weak, row in zip(self.board.titles, self.board.chance, self._cells, strict=True):
            drawn.add_row(
                _render_name(name, weak), *(_render_cell(row[column], self.plain, intervals) for column in shown)
            )
        return drawn

    def _legend(self, shown: Sequence[int], intervals: bool) -> str:
        """Meanings of the marks, and columns that were left out."""
        row = [each[column] for each in self._cells for column in shown]
        below = [f"its {CONFIDENCE:.0f} % bootstrap interval"] if intervals else []
        below += ["n where a metric is defined for some examples only"] if any(cell.partial for cell in row) else []
        legend = f"{'Numbers with *' if self.plain else 'Bold numbers'} are {BEST}."
        legend += f" Under a mean stands {' and '.join(below)}." if below else ""
        left = [card.heading for column, card in enumerate(self.board.cards) if column not in shown]
        gone = [*([] if intervals or not self.board.cards else ["intervals"]), *left]
        return f"{legend} Too narrow for {', '.join(gone)}: widen the terminal or see the report." if gone else legend

    def _names(self) -> list[str]:
        return [
            "method",
            *(line for name in self.board.titles for line in replace_control_characters(name).split("\n")),
        ]

    def _longest(self) -> int:
        return max(len(word) for name in self._names() for word in name.split() or [""])

    def _name_width(self) -> int:
        return max(self._longest(), min(MAY_WRAP, max(map(len, self._names()))))

    def _width(self, column: int, intervals: bool) -> int:
        texts = [_render_cell(row[column], self.plain, intervals).plain for row in self._cells]
        *words, last, arrow = replace_control_characters(self.board.cards[column].title).split(" ")
        return max(
            len(part) for part in [*words, f"{last} {arrow}", *(line for text in texts for line in text.split("\n"))]
        )


def fit_table(board: Leaderboard, *, plain: bool | None = None) -> FittedTable:
    """The leaderboard: best bold, with an arrow to the better side and 95 % intervals; prints as wide as it may.

    `plain` marks the best with *; by default it is on where standard output shows no colours.
    """
    return FittedTable(board, has_no_colors() if plain is None else plain)


def render_plain_table(board: Leaderboard, width: int | None = None) -> str:
    """The leaderboard as text without colours, as wide as the terminal (160 where there is none)."""
    console = Console(file=(out := StringIO()), width=width or shutil.get_terminal_size((160, 24)).columns)
    console.print(fit_table(board, plain=True))
    return out.getvalue()


def has_no_colors() -> bool:
    """Whether standard output shows no colours: a pipe, NO_COLOR, a dumb terminal."""
    console = Console()
    return not console.is_terminal or console.no_color or console.color_system is None


def _render_name(name: str, weak: bool) -> Text:
    text = Text(replace_control_characters(name))
    return text.append(f"\n{CHANCE}", "dim") if weak else text


def _render_cell(cell: TableCell, plain: bool, interval: bool) -> Text:
    text = Text().append(cell.mean, "bold" if cell.best and not plain else None)
    if plain and cell.best:
        text.append("*")
    if cell.interval and interval:
        text.append(f"\n{cell.interval.replace(' ', '')}", "dim")
    if cell.partial:
        text.append(f"\nn={cell.count}", "dim")
    return text
