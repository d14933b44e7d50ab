"""Drawings of generated text's attributions: prompt and response cut into pieces, and a shade for each unit and row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from exegete.reports.highlighted import colors
from exegete.reports.highlighted.pieces import replace_control_characters
from exegete.reports.tables.latex import escape_latex

if TYPE_CHECKING:
    from exegete.data.exchange import Extent
    from exegete.reports.generated import GeneratedAttribution

TOGETHER = "all together"


class TextPiece(NamedTuple):
    """A piece of a text, and the number of the unit or row it belongs to; None outside them."""

    text: str
    owner: int | None


class HighlightedText(NamedTuple):
    """The parts of a page: pieces of prompt and response, and for all rows together and each row the row's text, the
    shade of each unit (`colors.level`, the strongest of a row at the end of the scale), and the best units in words;
    `own`: the shades of the response's own parts, row by row; `format_bound_legend`: how what is promised is read.
    """

    item: GeneratedAttribution
    prompt: list[TextPiece]
    response: list[TextPiece]
    levels: list[list[int]]
    best: list[str]
    promise: str
    own: list[list[int]]


def highlight_generated(item: GeneratedAttribution) -> HighlightedText:
    """The drawing of one attribution."""
    rows = np.concatenate([item.scores.sum(0, keepdims=True), item.scores])
    names = (TOGETHER, *item.row_texts)
    best = [f"{name}: {_format_best_units(item, row - 1 if row else None)}" for row, name in enumerate(names)]
    answer = cut_text(item.response, [item.exchange.extent(span) for span in item.spans])
    shades = scores_to_levels(np.concatenate([rows, _sum_response_scores(item)], axis=1))
    units = [row[: len(item.units)] for row in shades]
    own = [] if item.prefix is None else [row[len(item.units) :] for row in shades]
    return HighlightedText(
        item, cut_text(item.prompt, item.places), answer, units, best, format_bound_legend(item), own
    )


def _sum_response_scores(item: GeneratedAttribution) -> NDArray[np.float32]:
    """[1 + T, T] What each row owes to the tokens of each; rows together, which come first, owe none."""
    if item.prefix is None:
        return np.zeros((1 + len(item.spans), 0), np.float32)
    parts = [np.nansum(item.prefix[:, start:end], axis=1) for start, end in item.spans]
    return np.concatenate([np.zeros((1, len(parts)), np.float32), np.stack(parts, axis=1)])


def cut_text(text: str, extents: Sequence[Extent]) -> list[TextPiece]:
    """The text cut where the extents begin and end; where two overlap, the later one counts."""
    owner = np.full(len(text), -1)
    for number, (start, end) in enumerate(extents):
        owner[start:end] = number
    edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(text)] if text else []
    return [TextPiece(text[a:b], int(owner[a]) if owner[a] >= 0 else None) for a, b in pairwise(edges)]


def scores_to_levels(rows: NDArray[np.float32]) -> list[list[int]]:
    """The shade of each score, row by row."""
    tops = np.abs(np.where(np.isfinite(rows), rows, 0)).max(1, initial=0)
    return [
        [colors.score_to_level(score, top) for score in row]
        for row, top in zip(rows.tolist(), tops.tolist(), strict=True)
    ]


def render_generated(item: GeneratedAttribution, *, plain: bool, unit: str = "") -> Text:
    """For a terminal: the prompt shaded by all rows together (not if `plain`), then each row with its best units.

    `unit` says what a score is.
    """
    shades, text = scores_to_levels(item.scores.sum(0, keepdims=True))[0], Text()
    text.append("method ", "dim").append(item.method, "bold").append(" · units ", "dim").append(item.unit, "bold")
    text.append(f" · scores: {unit}" if unit else "", "dim")
    text.append(f" · {format_bound_legend(item)}" if item.bounds is not None else "", "dim")
    text.append(" · input cut to the model's length\n" if item.truncated else "\n")
    if not plain:
        for piece in cut_text(item.prompt, item.places):
            ground = None
            if piece.owner is not None:
                ground = colors.level_to_color(colors.LIGHT, shades[piece.owner], signed=item.signed)
            style = f"{colors.LIGHT.text} on {ground}" if ground else "dim" if piece.owner is None else ""
            text.append(replace_control_characters(piece.text), style)
        text.append("\n")
    for row, name in enumerate(item.row_texts):
        chance = float(np.exp(item.log_probs[row]))
        text.append(f"{replace_control_characters(name)} ", "bold").append(f"({chance:.2g}) ", "dim").append(
            f"← {replace_control_characters(_format_best_units(item, row))}{_format_response_share(item, row)}\n"
        )
    text.rstrip()
    return text


def render_heat_map_latex(item: GeneratedAttribution, caption: str = "", label: str = "") -> str:
    """A heat map as a `table` (packages booktabs and xcolor with its option table): spans in rows, units in columns.

    Blue is for a span, orange against it; the strongest score of the table has the strongest shade.
    """
    top = float(np.abs(item.scores).max(initial=0))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * len(item.units)}}}",
        r"\toprule",
        " & ".join(["", *(escape_latex(unit) for unit in item.units)]) + r" \\",
        r"\midrule",
        *(
            " & ".join([escape_latex(name), *(_heat_map_cell(score, top) for score in row)]) + r" \\"
            for name, row in zip(item.row_texts, item.scores.tolist(), strict=True)
        ),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\caption{{{escape_latex(caption)}}}"] if caption else []),
        *([rf"\label{{{label}}}"] if label else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _heat_map_cell(score: float, top: float) -> str:
    share = round(60 * abs(score) / top) if top > 0 else 0
    return rf"\cellcolor{{{'orange' if score < 0 else 'blue'}!{share}}}{score:.2g}"


def format_bound_legend(item: GeneratedAttribution) -> str:
    """How brackets behind units are read, where there are some."""
    if item.bounds is None:
        return ""
    sure = f", right in {1 - item.params['alpha']:.0%} of cases" if "alpha" in item.params else ""
    return f"[≥ x]: without it the log-probability falls by x at least{sure}"


def _format_response_share(item: GeneratedAttribution, row: int) -> str:
    """What a row owes to the response before it."""
    return "" if item.prefix is None else f", the response so far {np.nansum(item.prefix[row]):+.3g}"


def _format_best_units(item: GeneratedAttribution, row: int | None) -> str:
    """The best units of a row, or of all together, each with what is promised of it."""
    bounds = {} if row is None else item.lower_bounds(row)
    named = [(unit if len(unit) <= 60 else unit[:59] + "…", unit, score) for unit, score in item.top(3, row)]
    told = {unit: f" [≥ {bound:.3g}]" for unit, bound in bounds.items()}
    return ", ".join(f"{short} {score:+.3g}{told.get(unit, '')}" for short, unit, score in named)
