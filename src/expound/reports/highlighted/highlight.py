"""Explanations as HTML: units on a colored background, image patches as a grid, responses with parts to point at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from expound.reports.highlighted import colors
from expound.reports.highlighted.pieces import Piece, Spans, cut_patches, cut_response, cut_texts, scores_to_levels
from expound.reports.highlighted.regions import DrawnImage, place_regions
from expound.reports.records import describe_margins
from expound.reports.table import Table, format_latex_table
from expound.reports.text import escape_latex, shorten

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

TOGETHER = "all parts"


class HighlightedExplanation(NamedTuple):
    """An explanation ready to be drawn; lists of 1 + T entries begin with the sum of all targets.

    `sides`: the pieces of each text; `patches`: rows of an image's patches; `response`: the pieces of a generated text,
    with the target of each. `levels` [1 + T, U]: the level of each unit (see `colors.score_to_level`). `best` [1 + T]:
    the best units in words. `own` [1 + T, T]: the levels of the response's parts, empty without scores of the response.
    """

    item: Explanation
    sides: list[list[Piece]]
    patches: list[list[Piece]]
    response: list[Piece]
    levels: list[list[int]]
    best: list[str]
    own: list[list[int]]
    images: list[DrawnImage]


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
        Table=Table,
        themes=colors.THEMES,
        css_class=colors.level_to_css_class,
        draw=highlight_explanation,
        arcs=layout_arcs,
        bound_legend=format_bound_legend,
    )
    templates.filters.update(number=format_number, signed=format_signed)
    return templates


def highlight_explanation(item: Explanation, rationale: Sequence[Spans | None] = ()) -> HighlightedExplanation:
    """Return the drawing of one explanation; `rationale` has the spans that people marked in each text."""
    patches = cut_patches(item)
    sides = [] if patches else cut_texts(item, rationale)
    response, best = list[Piece](), list[str]()
    if item.exchange is not None:
        spans = [target.value for target in item.targets if isinstance(target.value, tuple)]
        response = cut_response(item.response, [item.exchange.extent(span) for span in spans])
        best = [f"{TOGETHER}: {format_best_units(item, None)}"]
        for row, text in enumerate(item.target_texts):
            margins = describe_margins(item, row)
            best.append(f"{text}: {format_best_units(item, row)}{'; ' if margins else ''}{margins}")
    scores = np.concatenate([item.scores.sum(0, keepdims=True), item.scores])
    # Units and response share one scale per row, so that their shades can be compared.
    levels = scores_to_levels(np.concatenate([scores, _sum_response_scores(item)], axis=1))
    units = [row[: len(item.units)] for row in levels]
    own = [] if item.response_scores is None else [row[len(item.units) :] for row in levels]
    return HighlightedExplanation(item, sides, patches, response, units, best, own, place_regions(item, units[0]))


def _sum_response_scores(item: Explanation) -> NDArray[np.float32]:
    """Return each row's scores of the response's tokens, summed by target, [1 + T, T]; without such scores none."""
    if item.response_scores is None:
        return np.zeros((1 + len(item.targets), 0), np.float32)
    spans = [target.value for target in item.targets if isinstance(target.value, tuple)]
    parts = [np.nansum(item.response_scores[:, start:end], axis=1) for start, end in spans]
    # The whole response depends on no part of itself, so its row is zero.
    return np.concatenate([np.zeros((1, len(parts)), np.float32), np.stack(parts, axis=1)])


def format_best_units(item: Explanation, row: int | None) -> str:
    """Return the best units of a target, each with its lower bound if it has one; `row` None: of the sum of all."""
    bounds = {} if row is None else item.lower_bounds(row)
    parts = []
    for unit, score in item.top(3, row):
        bound = f" [≥ {bounds[unit]:.3g}]" if unit in bounds else ""
        parts.append(f"{shorten(unit, 60)} {score:+.3g}{bound}")
    return ", ".join(parts)


def format_bound_legend(item: Explanation) -> str:
    """Return how to read the brackets behind units; empty without lower bounds."""
    if item.bounds is None:
        return ""
    sure = f" in {1 - item.params['error_rate']:.0%} of cases" if "error_rate" in item.params else ""
    return f"[≥ x]: without this unit the log-probability falls by at least x{sure}"


def render_fragment(items: Iterable[Explanation]) -> str:
    """Return the explanations as an HTML fragment with its own style sheet, for a notebook."""
    return template_environment().get_template("fragment.html.j2").render(items=list(items))


def render_page(items: Iterable[Explanation]) -> str:
    """Return the explanations as one self-contained HTML page."""
    return template_environment().get_template("explanations.html.j2").render(items=list(items), title="Explanations")


def render_latex(item: Explanation, caption: str = "", label: str = "") -> str:
    """Return a `table` environment with targets in rows and units in columns; the other way round for one target.

    Blue scores are evidence for a target, orange ones against it; the strongest score has the strongest shade.
    """
    largest = float(np.abs(item.scores).max(initial=0))
    heads, names, table = item.unit_texts, item.target_texts, item.scores
    # The words of a text as columns would not fit a page.
    if item.exchange is None:
        heads, names, table = names, heads, table.T
    rows = []
    for name, row in zip(names, table.tolist(), strict=True):
        rows.append([escape_latex(name), *(_heat_map_cell(score, largest) for score in row)])
    return format_latex_table(["", *heads], rows, caption, label)


def _heat_map_cell(score: float, largest: float) -> str:
    # At most 60 % of the color, so that black figures stay readable on it.
    share = round(60 * abs(score) / largest) if largest > 0 else 0
    color = "orange" if score < 0 else "blue"
    return rf"\cellcolor{{{color}!{share}}}{score:.2g}"


def format_number(value: float | None) -> str:
    """Return the number with three significant digits; a dash for None and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


def format_signed(value: float) -> str:
    """Return the number with its sign and three significant digits."""
    return f"{value:+.3g}"


# Pixels. A letter of the page's 14-pixel monospaced font is 8.4 pixels wide.
LETTER, GAP, HEIGHT, LINE = 8.4, 9.0, 120.0, 24.0


class ArcLabel(NamedTuple):
    """A unit's text and the horizontal position of its middle."""

    text: str
    x: float


class Arc(NamedTuple):
    """An SVG path between two units, with its CSS class, its width and a title that names units and value."""

    path: str
    css: str
    width: float
    title: str


class ArcDiagram(NamedTuple):
    """Arcs in a frame of `width` × `height`; the words' baseline is at `base`."""

    width: float
    height: float
    base: float
    words: list[ArcLabel]
    arcs: list[Arc]


def layout_arcs(item: Explanation) -> ArcDiagram | None:
    """Return the diagram of an explanation's interactions; None without any."""
    if not item.interactions:
        return None
    names, labels, x = item.unit_texts, list[ArcLabel](), 0.0
    for name in names:
        width = LETTER * max(1, len(name))
        labels.append(ArcLabel(name, x + width / 2))
        x += width + GAP
    strongest = max(abs(value) for _, _, value in item.interactions)
    base, arcs = min(HEIGHT, x / 2) + 4, list[Arc]()
    for one, other, value in item.interactions:
        start, end = labels[one].x, labels[other].x
        top = base - max(12.0, min(HEIGHT, (end - start) / 2))
        path = f"M{start:.1f},{base:.1f} C{start:.1f},{top:.1f} {end:.1f},{top:.1f} {end:.1f},{base:.1f}"
        css = colors.level_to_css_class(colors.score_to_level(value, strongest), signed=True)
        width = 1 + 3 * abs(value) / strongest if strongest else 1.0
        arcs.append(Arc(path, css, width, f"{names[one]} – {names[other]}: {value:+.3g}"))
    return ArcDiagram(x, base + LINE, base, labels, arcs)
