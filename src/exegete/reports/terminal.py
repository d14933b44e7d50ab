"""Attributions and leaderboards for a terminal, in colour or, where there is none, with marks in the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted import colors, generated_view
from exegete.reports.highlighted.pieces import Piece, Spans, clean, grid, pieces, scale
from exegete.reports.tables.cells import BEST, CHANCE, Cell, cells

if TYPE_CHECKING:
    from exegete.reports.attributions import Attribution
    from exegete.reports.tables.leaderboard import Leaderboard


def render(
    attribution: Attribution | GeneratedAttribution,
    rationale: Sequence[Spans | None] = (),
    *,
    plain: bool | None = None,
) -> Text:
    """The example with its words on coloured ground, under a line with method, target, probability and prediction.

    `rationale` has the gold spans of each text, which are underlined. `plain` writes scores after the words and gold
    spans in double brackets; by default it is on where standard output shows no colours (a pipe, NO_COLOR).
    """
    without = _no_colors() if plain is None else plain
    if isinstance(attribution, GeneratedAttribution):
        return generated_view.render(attribution, plain=without)
    text = Text()
    text.append_text(_head(attribution))
    body = _patches(attribution, without) if attribution.image_shape else _sides(attribution, rationale, without)
    return text.append_text(body)


def table(board: Leaderboard, *, plain: bool | None = None) -> Table:
    """The leaderboard: best bold, with an arrow to the better side and 95 % intervals.

    `plain` marks the best with *; by default as in `render`.
    """
    without = _no_colors() if plain is None else plain
    legend = f"{'*' if without else 'bold'}: {BEST}. Below: 95 % bootstrap interval; n: examples where not all."
    drawn = Table(box=SIMPLE_HEAD, caption=legend, caption_justify="left")
    drawn.add_column("method", overflow="fold")
    for card in board.cards:
        drawn.add_column(Text(clean(card.title)), justify="right", overflow="fold")
    for name, weak, row in zip(board.rows, board.chance, cells(board), strict=True):
        drawn.add_row(_name(name, weak), *(_cell(cell, without) for cell in row))
    return drawn


def plain_table(board: Leaderboard, width: int = 160) -> str:
    """The leaderboard as text without colours."""
    console = Console(file=(out := StringIO()), width=width, no_color=True)
    console.print(table(board, plain=True))
    return out.getvalue()


def _no_colors() -> bool:
    console = Console()
    return not console.is_terminal or console.no_color or console.color_system is None


def _head(item: Attribution) -> Text:
    parts = [
        ("", item.method),
        ("explains ", f"{item.target_label} ({item.probability:.2f})"),
        ("prediction ", item.prediction_label),
    ]
    if item.truncated:
        parts.append(("input cut to the model's length", ""))
    line = Text()
    for index, (word, value) in enumerate(parts):
        line.append(f"{' · ' if index else ''}{word}", "dim").append(clean(value), "bold")
    return line


def _sides(item: Attribution, rationale: Sequence[Spans | None], plain: bool) -> Text:
    text = Text()
    for side in pieces(item, rationale):
        text.append("\n")
        text.append_text(Text.assemble(*(_piece(piece, item.signed, plain) for piece in side)))
    return text


def _piece(piece: Piece, signed: bool, plain: bool) -> Text:
    shown = clean(piece.text)
    if plain:
        shown = f"[[{shown}]]" if piece.gold and piece.score is not None else shown
        return Text(shown if not piece.level else f"{shown}({piece.score:+.2g})")
    return Text(shown, _style(piece.level, signed, underline=piece.gold))


def _style(level: int, signed: bool, *, underline: bool = False) -> Style:
    ground = colors.shade(colors.LIGHT, level, signed=signed)
    ink = colors.LIGHT.text if ground else None
    return Style(color=ink, bgcolor=ground, underline=underline or None)


def _patches(item: Attribution, plain: bool) -> Text:
    top = scale(item)
    return Text.assemble(*(part for row in grid(item) for part in _patch_row(row.tolist(), top, item.signed, plain)))


def _patch_row(row: Iterable[float], top: float, signed: bool, plain: bool) -> list[Text]:
    if plain:
        return [Text("\n" + " ".join(f"{score:+8.2g}" for score in row))]
    return [Text("\n"), *(Text("  ", _style(colors.level(score, top), signed)) for score in row)]


def _name(name: str, weak: bool) -> Text:
    text = Text(clean(name))
    return text.append(f"\n{CHANCE}", "dim") if weak else text


def _cell(cell: Cell, plain: bool) -> Text:
    text = Text().append(cell.mean, "bold" if cell.best and not plain else None)
    if plain and cell.best:
        text.append("*")
    if cell.interval:
        text.append(f"\n{cell.interval.replace(' ', '')}", "dim")
    if cell.partial:
        text.append(f"\nn={cell.count}", "dim")
    return text
