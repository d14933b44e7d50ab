"""Attributions as HTML: words on coloured ground, image patches as a grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from exegete.reports.highlighted import colors
from exegete.reports.highlighted.arcs import layout_arcs
from exegete.reports.highlighted.generated_view import highlight_generated
from exegete.reports.highlighted.pieces import Piece, Spans, cut_texts, largest_magnitude, patch_scores

if TYPE_CHECKING:
    from exegete.reports.attributions import Attribution
    from exegete.reports.generated import GeneratedAttribution


class HighlightedExample(NamedTuple):
    """An attribution ready to be drawn: pieces of each text, or rows of image patches."""

    item: Attribution
    sides: list[list[Piece]]
    patches: list[list[Piece]]


@cache
def template_environment() -> Environment:
    """The templates; everything that is put into them is escaped."""
    folder = Path(__file__).parents[1] / "templates"
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
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


def highlight_attribution(item: Attribution, rationale: Sequence[Spans | None] = ()) -> HighlightedExample:
    """The drawing of one attribution; `rationale` has the gold spans of each text."""
    if item.image_shape is None:
        return HighlightedExample(item, cut_texts(item, rationale), [])
    top = largest_magnitude(item)
    cells = patch_scores(item)
    rows = [
        [
            Piece("", float(score), colors.score_to_level(score, top), False, y * len(row) + x)
            for x, score in enumerate(row)
        ]
        for y, row in enumerate(cells)
    ]
    return HighlightedExample(item, [], rows)


def render_fragment(items: Iterable[Attribution | GeneratedAttribution]) -> str:
    """The attributions as an HTML fragment with its own style, for a notebook."""
    return template_environment().get_template("fragment.html.j2").render(items=list(items))


def render_page(items: Iterable[Attribution | GeneratedAttribution]) -> str:
    """The attributions as one HTML page that needs no other file."""
    return template_environment().get_template("attributions.html.j2").render(items=list(items), title="Attributions")


def format_number(value: float | None) -> str:
    """A number with three significant digits; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


def format_signed(value: float) -> str:
    """As `format_number`, with its sign."""
    return f"{value:+.3g}"
