"""Drawings of attributions of generated text: prompt and response cut into pieces, and a shade per unit and row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from exegete.data.exchange import Extent
from exegete.reports.highlighted import colors
from exegete.reports.highlighted.scored import ScoredResponse
from exegete.reports.text import escape_latex, replace_control_characters

TOGETHER = "all parts"


class TextPiece(NamedTuple):
    """A piece of a text and the number of the unit or row it belongs to; None outside units and rows."""

    text: str
    owner: int | None


class HighlightedText(NamedTuple):
    """An attribution of T rows ready to be drawn; lists of 1 + T entries begin with the sum of all rows.

    `prompt` and `response`: their pieces. `levels` [1 + T, U]: the level of each unit (see `colors.score_to_level`);
    the strongest score of a row has the strongest shade. `best` [1 + T]: the best units in words. `own` [1 + T, T]: the
    level of each part of the response itself, empty without scores of the response. `promise`: how to read lower
    bounds, empty without bounds.
    """

    item: ScoredResponse
    prompt: list[TextPiece]
    response: list[TextPiece]
    levels: list[list[int]]
    best: list[str]
    promise: str
    own: list[list[int]]


def highlight_generated(item: ScoredResponse) -> HighlightedText:
    """Return the drawing of one attribution."""
    scores = np.concatenate([item.scores.sum(0, keepdims=True), item.scores])
    best = [f"{TOGETHER}: {_format_best_units(item, None)}"]
    for row, text in enumerate(item.row_texts):
        best.append(f"{text}: {_format_best_units(item, row)}")
    response = cut_text(item.response, [item.exchange.extent(span) for span in item.spans])
    # Units and response share one scale per row, so that their shades can be compared.
    levels = scores_to_levels(np.concatenate([scores, _sum_response_scores(item)], axis=1))
    units = [row[: len(item.units)] for row in levels]
    own = [] if item.prefix is None else [row[len(item.units) :] for row in levels]
    prompt = cut_text(item.prompt, item.places)
    return HighlightedText(item, prompt, response, units, best, format_bound_legend(item), own)


def _sum_response_scores(item: ScoredResponse) -> NDArray[np.float32]:
    """Return each row's scores of the response's tokens, summed by row, [1 + T, T]; without such scores [1 + T, 0]."""
    if item.prefix is None:
        return np.zeros((1 + len(item.spans), 0), np.float32)
    parts = [np.nansum(item.prefix[:, start:end], axis=1) for start, end in item.spans]
    # The whole response depends on no part of itself, so its row is zero.
    return np.concatenate([np.zeros((1, len(parts)), np.float32), np.stack(parts, axis=1)])


def cut_text(text: str, extents: Sequence[Extent]) -> list[TextPiece]:
    """Return the text cut at the ends of the extents; where two extents overlap, the later one wins."""
    owner = np.full(len(text), -1)
    for number, (start, end) in enumerate(extents):
        owner[start:end] = number
    edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(text)] if text else []
    return [TextPiece(text[a:b], int(owner[a]) if owner[a] >= 0 else None) for a, b in pairwise(edges)]


def scores_to_levels(rows: NDArray[np.float32]) -> list[list[int]]:
    """Return the level of each score [R, U], scaled by the largest finite magnitude of its row."""
    largest = np.abs(np.where(np.isfinite(rows), rows, 0)).max(1, initial=0)
    levels = []
    for row, scale in zip(rows.tolist(), largest.tolist(), strict=True):
        levels.append([colors.score_to_level(score, scale) for score in row])
    return levels


def render_generated(item: ScoredResponse, *, plain: bool, unit: str = "") -> Text:
    """Return terminal text: the prompt shaded by the sum of all rows (left out if `plain`), then each row's best units.

    `unit` says what a score measures.
    """
    text = Text()
    text.append("method ", "dim").append(item.method, "bold").append(" · units ", "dim").append(item.unit, "bold")
    text.append(f" · scores: {unit}" if unit else "", "dim")
    text.append(f" · {format_bound_legend(item)}" if item.bounds is not None else "", "dim")
    text.append(" · input cut to the model's length\n" if item.truncated else "\n")
    if not plain:
        levels = scores_to_levels(item.scores.sum(0, keepdims=True))[0]
        for piece in cut_text(item.prompt, item.places):
            text.append(replace_control_characters(piece.text), _piece_style(piece, levels, item.signed))
        text.append("\n")
    for row, name in enumerate(item.row_texts):
        probability = float(np.exp(item.log_probs[row]))
        text.append(f"{replace_control_characters(name)} ", "bold").append(f"({probability:.2g}) ", "dim")
        best = replace_control_characters(_format_best_units(item, row))
        text.append(f"← {best}{_format_response_share(item, row)}\n")
    text.rstrip()
    return text


def _piece_style(piece: TextPiece, levels: Sequence[int], signed: bool) -> str:
    if piece.owner is None:
        return "dim"
    background = colors.level_to_color(colors.LIGHT, levels[piece.owner], signed=signed)
    return f"{colors.LIGHT.text} on {background}" if background else ""


def render_heat_map_latex(item: ScoredResponse, caption: str = "", label: str = "") -> str:
    """Return a `table` environment with spans in rows and units in columns (booktabs, and xcolor with option table).

    Blue scores are evidence for a span, orange ones against it; the strongest score has the strongest shade.
    """
    largest = float(np.abs(item.scores).max(initial=0))
    body = []
    for name, row in zip(item.row_texts, item.scores.tolist(), strict=True):
        cells = [_heat_map_cell(score, largest) for score in row]
        body.append(" & ".join([escape_latex(name), *cells]) + r" \\")
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * len(item.units)}}}",
        r"\toprule",
        " & ".join(["", *map(escape_latex, item.units)]) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if caption:
        lines.append(rf"\caption{{{escape_latex(caption)}}}")
    if label:
        lines.append(rf"\label{{{label}}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _heat_map_cell(score: float, largest: float) -> str:
    # At most 60 % of the colour, so that black figures stay readable on it.
    share = round(60 * abs(score) / largest) if largest > 0 else 0
    return rf"\cellcolor{{{'orange' if score < 0 else 'blue'}!{share}}}{score:.2g}"


def format_bound_legend(item: ScoredResponse) -> str:
    """Return how to read the brackets behind units; empty without lower bounds."""
    if item.bounds is None:
        return ""
    sure = f" in {1 - item.params['alpha']:.0%} of cases" if "alpha" in item.params else ""
    return f"[≥ x]: without this unit the log-probability falls by at least x{sure}"


def _format_response_share(item: ScoredResponse, row: int) -> str:
    return "" if item.prefix is None else f", the response so far {np.nansum(item.prefix[row]):+.3g}"


def _format_best_units(item: ScoredResponse, row: int | None) -> str:
    """Return the best units of a row, each with its lower bound if it has one; `row` None: of the sum of all rows."""
    bounds = {} if row is None else item.lower_bounds(row)
    parts = []
    for unit, score in item.top(3, row):
        short = unit if len(unit) <= 60 else unit[:59] + "…"
        bound = f" [≥ {bounds[unit]:.3g}]" if unit in bounds else ""
        parts.append(f"{short} {score:+.3g}{bound}")
    return ", ".join(parts)
