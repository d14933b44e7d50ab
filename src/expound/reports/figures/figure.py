"""Curves as matplotlib figures; pyplot is not used, so that no window opens and no global state changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from expound.reports.figures.curves import Curve
from expound.reports.highlighted.colors import LIGHT
from expound.reports.tables.leaderboard import CONTROL


def plot_curves(curves: Sequence[Curve]) -> Figure:
    """Return a figure with one panel per metric and one line with its band per method."""
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    methods = list(dict.fromkeys(curve.method for curve in curves))
    figure, panels = make_panels(len(metrics))
    for axes, metric in zip(panels, metrics, strict=True):
        lines = [curve for curve in curves if curve.metric == metric]
        for curve in lines:
            _draw_curve(axes, curve, methods.index(curve.method))
        axes.set(
            title=escape_mathtext(metric),
            xlabel=escape_mathtext(lines[0].x_label),
            ylabel=escape_mathtext(lines[0].y_label),
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize="small")
    return figure


def make_panels(count: int, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, three per line; `height` of a line in inches."""
    columns = min(3, max(1, count))
    lines = max(1, math.ceil(count / columns))
    # pyplot would keep every figure alive, and may choose a backend that needs a display.
    figure = Figure(figsize=(4.6 * columns, height * lines))
    figure.set_layout_engine("constrained")
    return figure, [figure.add_subplot(lines, columns, index + 1) for index in range(count)]


def _draw_curve(axes: Axes, curve: Curve, number: int) -> None:
    color, dashes = LIGHT.series[number % len(LIGHT.series)], ["-", "--", ":", "-."][number // len(LIGHT.series) % 4]
    if curve.method.lower() == CONTROL:
        color, dashes = LIGHT.muted, ":"
    x, mean, low, high = (np.asarray(values, dtype=np.float64) for values in curve[2:6])
    axes.plot(x, mean, color=color, linestyle=dashes, marker="o", markersize=3, label=escape_mathtext(curve.method))
    axes.fill_between(x, low, high, color=color, alpha=0.14, linewidth=0)


def escape_mathtext(text: str) -> str:
    """Return text that matplotlib shows literally, not as mathematics."""
    return text.replace("$", r"\$")
