"""A small line chart as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from expound.reports.figures.curves import choose_ticks

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 160, 48, 132, 10, 34


def draw_chart(lines: Mapping[str, Points], title: str, x_label: str = "step") -> str:
    """Return the SVG: one line per name (which may be empty), with its last value beside its end."""
    across = choose_ticks(0, max(x for points in lines.values() for x, _ in points), 4)
    heights = [y for points in lines.values() for _, y in points]
    down = choose_ticks(min(heights), max(heights), 4)

    def position(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * (x - across[0]) / (across[-1] - across[0]),
            TOP + (HEIGHT - TOP - BOTTOM) * (down[-1] - y) / (down[-1] - down[0]),
        )

    parts = [_text(LEFT - 6, position(0, y)[1] + 4, f"{y:g}", "end") + _rule(position(0, y)[1]) for y in down]
    parts += [_text(position(x, 0)[0], HEIGHT - BOTTOM + 16, f"{x:g}", "middle") for x in across]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, "middle"))
    ends = _spread_heights([position(*points[-1])[1] for points in lines.values()])
    for number, (name, points) in enumerate(lines.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (position(*point) for point in points))
        parts.append(f'<polyline class="line{number % 4}" points="{path}"/>')
        label = f"{name} {points[-1][1]:.3g}".strip()
        parts.append(_text(position(*points[-1])[0] + 8, ends[number] + 4, label, "start", f"name{number % 4}"))
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _spread_heights(heights: Sequence[float], least: float = 15) -> list[float]:
    """Return the heights, moved down until neighbors are at least `least` apart, so that labels do not overlap."""
    order = sorted(range(len(heights)), key=lambda each: heights[each])
    moved = list(heights)
    for above, below in pairwise(order):
        moved[below] = max(moved[below], moved[above] + least)
    return moved


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _rule(y: float) -> str:
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
