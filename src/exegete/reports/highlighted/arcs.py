"""Pairs of units that act together, as arcs over the units in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from exegete.reports.highlighted import colors

if TYPE_CHECKING:
    from exegete.reports.attributions import Attribution

LETTER, GAP, HEIGHT, LINE = 8.4, 9.0, 120.0, 24.0


class ArcLabel(NamedTuple):
    """A unit and where its middle is."""

    text: str
    x: float


class Arc(NamedTuple):
    """An SVG path between two units, its shade and width, and what it says in words."""

    path: str
    css: str
    width: float
    title: str


class ArcDiagram(NamedTuple):
    """A drawing of arcs, `width` × `height`; its words stand on the line `base`."""

    width: float
    height: float
    base: float
    words: list[ArcLabel]
    arcs: list[Arc]


def layout_arcs(item: Attribution) -> ArcDiagram | None:
    """The drawing; None without pairs."""
    if not item.pairs:
        return None
    names, words, x = item.words or item.tokens, list[ArcLabel](), 0.0
    for name in names:
        width = LETTER * max(1, len(name))
        words.append(ArcLabel(name, x + width / 2))
        x += width + GAP
    strongest = max(abs(value) for _, _, value in item.pairs)
    base, drawn = min(HEIGHT, x / 2) + 4, list[Arc]()
    for one, other, value in item.pairs:
        start, end = words[one].x, words[other].x
        top = base - max(12.0, min(HEIGHT, (end - start) / 2))
        path = f"M{start:.1f},{base:.1f} C{start:.1f},{top:.1f} {end:.1f},{top:.1f} {end:.1f},{base:.1f}"
        css = colors.level_to_css_class(colors.score_to_level(value, strongest), signed=True)
        width = 1 + 3 * abs(value) / strongest if strongest else 1.0
        drawn.append(Arc(path, css, width, f"{names[one]} – {names[other]}: {value:+.3g}"))
    return ArcDiagram(x, base + LINE, base, words, drawn)
