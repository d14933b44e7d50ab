"""Pairs of units that act together, as arcs over the units in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from exegete.reports.highlighted import colors

if TYPE_CHECKING:
    from exegete.reports.explanations import Explanation

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
        # Wide arcs are higher, so that nested pairs do not cover each other.
        top = base - max(12.0, min(HEIGHT, (end - start) / 2))
        path = f"M{start:.1f},{base:.1f} C{start:.1f},{top:.1f} {end:.1f},{top:.1f} {end:.1f},{base:.1f}"
        css = colors.level_to_css_class(colors.score_to_level(value, strongest), signed=True)
        width = 1 + 3 * abs(value) / strongest if strongest else 1.0
        arcs.append(Arc(path, css, width, f"{names[one]} – {names[other]}: {value:+.3g}"))
    return ArcDiagram(x, base + LINE, base, labels, arcs)
