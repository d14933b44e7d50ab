"""Explanations for a terminal, in color, or with marks in the text when standard output shows no colors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.style import Style
from rich.text import Text

from expound.reports.explanations import Explanation
from expound.reports.highlighted import colors
from expound.reports.highlighted.highlight import format_best_units, format_bound_legend
from expound.reports.highlighted.pieces import Piece, Spans, cut_patches, cut_texts
from expound.reports.records import describe_margins
from expound.reports.table import has_no_colors
from expound.reports.text import replace_control_characters


def render_explanation(
    item: Explanation, rationale: Sequence[Spans | None] = (), *, plain: bool | None = None, unit: str = ""
) -> Text:
    """Return the example with its units on colored background, below a line with method, target and prediction.

    A generated response follows part by part, with the best units of each.

    Args:
        item: the explanation.
        rationale: the spans of each text that people marked, which are underlined.
        plain: write scores after the words, and marked spans in double brackets, instead of colors; default: if
            standard output shows no colors (a pipe, NO_COLOR).
        unit: what a score measures, for the first line.
    """
    if plain is None:
        plain = has_no_colors()
    text = _render_header(item, unit)
    if item.image_shape:
        for row in cut_patches(item):
            text.append("\n").append_text(_render_patch_row(row, item.signed, plain))
    # The prompt is known to who asked, and long: without colors its scores would hide the answer.
    elif item.exchange is None or not plain:
        for pieces in cut_texts(item, rationale):
            text.append("\n")
            for piece in pieces:
                text.append_text(_render_piece(piece, item, plain))
    if item.exchange is not None:
        for number in range(len(item.targets)):
            text.append("\n").append_text(_render_response_part(item, number))
    return text


def _render_header(item: Explanation, unit: str) -> Text:
    parts = [("", item.method)]
    if item.exchange is not None:
        parts.append(("units ", item.unit))
    else:
        about = ""
        if item.target.place is not None:
            side, start, end = item.target.place
            about = f" of “{item.texts[side][start:end]}”"
        parts.append(("explains ", f"{item.target.text} ({item.target.probability:.2f}){about}"))
    if item.prediction is not None:
        parts.append(("prediction ", item.prediction.text))
    if unit:
        parts.append(("scores: ", unit))
    parts += [(note, "") for note in (format_bound_legend(item), *item.notes) if note]
    line = Text()
    for index, (name, value) in enumerate(parts):
        line.append(f"{' · ' if index else ''}{name}", "dim").append(replace_control_characters(value), "bold")
    return line


def _render_response_part(item: Explanation, row: int) -> Text:
    target, text = item.targets[row], Text()
    text.append(f"{replace_control_characters(target.text)} ", "bold")
    text.append(f"({target.mean_probability:.2g} per token) ", "dim")
    so_far = ""
    if item.response_scores is not None:
        so_far = f", the response so far {np.nansum(item.response_scores[row]):+.3g}"
    text.append(f"← {replace_control_characters(format_best_units(item, row))}{so_far}")
    margins = describe_margins(item, row)
    return text.append(f"\n  {replace_control_characters(margins)}", "dim") if margins else text


def _render_piece(piece: Piece, item: Explanation, plain: bool) -> Text:
    shown = replace_control_characters(piece.text)
    if not plain:
        # The chat template around the visible texts has no scores.
        if piece.unit is None and item.exchange is not None:
            return Text(shown, "dim")
        return Text(shown, _level_style(piece.level, item.signed, underline=piece.gold))
    if piece.gold and piece.score is not None:
        shown = f"[[{shown}]]"
    if piece.level:
        shown = f"{shown}({piece.score:+.2g})"
    return Text(shown)


def _level_style(level: int, signed: bool, *, underline: bool = False) -> Style:
    background = colors.level_to_color(colors.LIGHT, level, signed=signed)
    # The shades are those of a light page: light letters of a dark terminal could not be read on them.
    ink = colors.LIGHT.text if background else None
    return Style(color=ink, bgcolor=background, underline=underline or None)


def _render_patch_row(row: Sequence[Piece], signed: bool, plain: bool) -> Text:
    if plain:
        return Text(" ".join(f"{piece.score:+8.2g}" for piece in row))
    # Two spaces per patch are about as wide as a line is high.
    return Text.assemble(*(("  ", _level_style(piece.level, signed)) for piece in row))
