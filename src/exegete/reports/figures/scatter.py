"""Points with a group and a spread as matplotlib figures, and several tables and figures as one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from exegete.reports.figures.figure import literal, panels
from exegete.reports.highlighted.colors import LIGHT

MARKERS = "os^Dv*PX"


@dataclass(frozen=True, slots=True)
class Points:
    """The points of one group in one panel; `x_spread` and `y_spread` reach to both sides, `joined` draws a line."""

    panel: str
    group: str
    x: ArrayLike
    y: ArrayLike
    x_spread: ArrayLike | None = None
    y_spread: ArrayLike | None = None
    joined: bool = False


def scatter_figure(points: Sequence[Points], x_label: str, y_label: str, *, lines: Sequence[float] = ()) -> Figure:
    """One panel a name, one colour and marker a group; dashed vertical lines at `lines`, as bounds."""
    names, groups = (list(dict.fromkeys(getattr(each, what) for each in points)) for what in ("panel", "group"))
    figure, grid = panels(len(names))
    for axes, name in zip(grid, names, strict=True):
        for each in points:
            if each.panel == name:
                number = groups.index(each.group)
                _draw(axes, each, LIGHT.series[number % len(LIGHT.series)], MARKERS[number % len(MARKERS)])
        for place in lines:
            axes.axvline(place, color=LIGHT.text, linestyle="--", linewidth=0.8)
        axes.set(title=literal(name), xlabel=literal(x_label), ylabel=literal(y_label))
        axes.legend(fontsize="x-small")
    return figure


def _draw(axes: Axes, points: Points, color: str, marker: str) -> None:
    x, y = np.asarray(points.x, dtype=np.float64), np.asarray(points.y, dtype=np.float64)
    spread = (points.y_spread, points.x_spread)
    line, label = "-" if points.joined else "", literal(points.group)
    axes.errorbar(x, y, *spread, linestyle=line, marker=marker, markersize=4, elinewidth=0.8, color=color, label=label)
