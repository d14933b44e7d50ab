"""Attributions for a terminal, in colour or, where there is none, with marks in the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted import colors, generated_view
from exegete.reports.highlighted.pieces import (
    Piece,
    Spans,
    cut_texts,
    largest_magnitude,
    patch_scores,
    replace_control_characters,
)
from exegete.reports.tables.terminal_table import has_no_colors

if TYPE_CHECKING:
    from exegete.reports.attributions import Attribution


def render_attribution(
    attribution: Attribution | GeneratedAttribution,
    rationale: Sequence[Spans | None] = (),
    *,
    plain: bool | None = None,
    unit: str = "",
) -> Text:
    """The example with its words on coloured ground, under a line with method, target, probability and prediction.

    `rationale` has the gold spans of each text, which are underlined. `plain` writes scores after the words and gold
    spans in double brackets; by default it is on where standard output shows no colours (a pipe, NO_COLOR). `unit`
    says what a score is.
    """
    without = has_no_colors() if plain is None else plain
    if isinstance(attribution, GeneratedAttribution):
        return generated_view.render_generated(attribution, plain=without, unit=unit)
    text = Text()
    text.append_text(_render_header(attribution, unit))
    body = (
        _render_patches(attribution, without)
        if attribution.image_shape
        else _render_texts(attribution, rationale, without)
    )
    return text.append_text(body)


def _render_header(item: Attribution, unit: str) -> Text:
    about = "" if item.about is None else f" of “{item.texts[item.about[0]][slice(*item.about[1:])]}”"
    parts = [
        ("", item.method),
        ("explains ", f"{item.target_label} ({item.probability:.2f}){about}"),
        ("prediction ", item.prediction_label),
    ]
    if unit:
        parts.append(("scores: ", unit))
    if item.truncated:
        parts.append(("input cut to the model's length", ""))
    line = Text()
    for index, (word, value) in enumerate(parts):
        line.append(f"{' · ' if index else ''}{word}", "dim").append(replace_control_characters(value), "bold")
    return line


def _render_texts(item: Attribution, rationale: Sequence[Spans | None], plain: bool) -> Text:
    text = Text()
    for side in cut_texts(item, rationale):
        text.append("\n")
        text.append_text(Text.assemble(*(_render_piece(piece, item.signed, plain) for piece in side)))
    return text


def _render_piece(piece: Piece, signed: bool, plain: bool) -> Text:
    shown = replace_control_characters(piece.text)
    if plain:
        shown = f"[[{shown}]]" if piece.gold and piece.score is not None else shown
        return Text(shown if not piece.level else f"{shown}({piece.score:+.2g})")
    return Text(shown, _level_style(piece.level, signed, underline=piece.gold))


def _level_style(level: int, signed: bool, *, underline: bool = False) -> Style:
    ground = colors.level_to_color(colors.LIGHT, level, signed=signed)
    ink = colors.LIGHT.text if ground else None
    return Style(color=ink, bgcolor=ground, underline=underline or None)


def _render_patches(item: Attribution, plain: bool) -> Text:
    top = largest_magnitude(item)
    return Text.assemble(
        *(part for row in patch_scores(item) for part in _render_patch_row(row.tolist(), top, item.signed, plain))
    )


def _render_patch_row(row: Iterable[float], top: float, signed: bool, plain: bool) -> list[Text]:
    if plain:
        return [Text("\n" + " ".join(f"{score:+8.2g}" for score in row))]
    return [Text("\n"), *(Text("  ", _level_style(colors.score_to_level(score, top), signed)) for score in row)]
