"""Attributions as HTML: words on a coloured background, image patches as a grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from exegete.reports.highlighted import colors
from exegete.reports.highlighted.arcs import layout_arcs
from exegete.reports.highlighted.generated_view import highlight_generated
from exegete.reports.highlighted.pieces import Piece, Spans, cut_texts, largest_magnitude, patch_scores
from exegete.reports.highlighted.scored import ScoredExample, ScoredResponse


class HighlightedExample(NamedTuple):
    """An attribution ready to be drawn: pieces of each text (`sides`), or rows of image patches."""

    item: ScoredExample
    sides: list[list[Piece]]
    patches: list[list[Piece]]


@cache
def template_environment() -> Environment:
    """Return the environment of all templates, which escapes every value."""
    folder = Path(__file__).parents[1] / "templates"
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        # A misspelt name in a template is an error, not an empty string.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        themes=colors.THEMES,
        css_class=colors.level_to_css_class,
        draw=highlight_attribution,
        lit=highlight_generated,
        arcs=layout_arcs,
    )
    templates.filters.update(number=format_number, signed=format_signed)
    return templates


def highlight_attribution(item: ScoredExample, rationale: Sequence[Spans | None] = ()) -> HighlightedExample:
    """Return the drawing of one attribution; `rationale` has the spans that people marked in each text."""
    if item.image_shape is None:
        return HighlightedExample(item, cut_texts(item, rationale), [])
    largest = largest_magnitude(item)
    patches, number = [], 0
    for scores in patch_scores(item).tolist():
        row = []
        for score in scores:
            row.append(Piece("", score, colors.score_to_level(score, largest), gold=False, unit=number))
            number += 1
        patches.append(row)
    return HighlightedExample(item, [], patches)


def render_fragment(items: Iterable[ScoredExample | ScoredResponse]) -> str:
    """Return the attributions as an HTML fragment with its own style sheet, for a notebook."""
    return template_environment().get_template("fragment.html.j2").render(items=list(items))


def render_page(items: Iterable[ScoredExample | ScoredResponse]) -> str:
    """Return the attributions as one self-contained HTML page."""
    return template_environment().get_template("attributions.html.j2").render(items=list(items), title="Attributions")


def format_number(value: float | None) -> str:
    """Return the number with three significant digits; a dash for None and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


def format_signed(value: float) -> str:
    """Return the number with its sign and three significant digits."""
    return f"{value:+.3g}"
