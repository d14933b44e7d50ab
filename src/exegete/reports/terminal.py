"""Attributions for a terminal, in colour, or with marks in the text when standard output shows no colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.style import Style
from rich.text import Text

from exegete.reports.attributions import Attribution
from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted import colors, generated_view
from exegete.reports.highlighted.pieces import Piece, Spans, cut_texts, largest_magnitude, patch_scores
from exegete.reports.tables.terminal_table import has_no_colors
from exegete.reports.text import replace_control_characters


def render_attribution(
    attribution: Attribution | GeneratedAttribution,
    rationale: Sequence[Spans | None] = (),
    *,
    plain: bool | None = None,
    unit: str = "",
) -> Text:
    """Return the example with its words on coloured background, below a line with method, target and prediction.

    Args:
        attribution: of a text, an image or a response.
        rationale: the spans of each text that people marked, which are underlined.
        plain: write scores after the words, and marked spans in double brackets, instead of colours; default: if
            standard output shows no colours (a pipe, NO_COLOR).
        unit: what a score measures, for the first line.
    """
    plain = has_no_colors() if plain is None else plain
    if isinstance(attribution, GeneratedAttribution):
        return generated_view.render_generated(attribution, plain=plain, unit=unit)
    text = _render_header(attribution, unit)
    if attribution.image_shape:
        return text.append_text(_render_patches(attribution, plain))
    return text.append_text(_render_texts(attribution, rationale, plain))


def _render_header(item: Attribution, unit: str) -> Text:
    about = ""
    if item.about is not None:
        side, start, end = item.about
        about = f" of “{item.texts[side][start:end]}”"
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
    for index, (name, value) in enumerate(parts):
        line.append(f"{' · ' if index else ''}{name}", "dim").append(replace_control_characters(value), "bold")
    return line


def _render_texts(item: Attribution, rationale: Sequence[Spans | None], plain: bool) -> Text:
    text = Text()
    for pieces in cut_texts(item, rationale):
        text.append("\n")
        for piece in pieces:
            text.append_text(_render_piece(piece, item.signed, plain))
    return text


def _render_piece(piece: Piece, signed: bool, plain: bool) -> Text:
    shown = replace_control_characters(piece.text)
    if not plain:
        return Text(shown, _level_style(piece.level, signed, underline=piece.gold))
    if piece.gold and piece.score is not None:
        shown = f"[[{shown}]]"
    return Text(f"{shown}({piece.score:+.2g})" if piece.level else shown)


def _level_style(level: int, signed: bool, *, underline: bool = False) -> Style:
    background = colors.level_to_color(colors.LIGHT, level, signed=signed)
    # The shades are those of a light page: light letters of a dark terminal could not be read on them.
    ink = colors.LIGHT.text if background else None
    return Style(color=ink, bgcolor=background, underline=underline or None)


def _render_patches(item: Attribution, plain: bool) -> Text:
    largest, text = largest_magnitude(item), Text()
    for row in patch_scores(item):
        text.append("\n")
        text.append_text(_render_patch_row(row.tolist(), largest, item.signed, plain))
    return text


def _render_patch_row(row: Iterable[float], largest: float, signed: bool, plain: bool) -> Text:
    if plain:
        return Text(" ".join(f"{score:+8.2g}" for score in row))
    # Two spaces per patch are about as wide as a line is high.
    return Text.assemble(*(("  ", _level_style(colors.score_to_level(score, largest), signed)) for score in row))
