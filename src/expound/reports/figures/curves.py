"""Faithfulness curves as numbers, and their geometry in a chart that the HTML report draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

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


Points = list[tuple[float, float]]

WIDTH, HEIGHT = 540, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 176, 12, 42
APART = 14
"""Vertical distance between two labels."""


class Curve(NamedTuple):
    """The score of a metric as more of the input is removed or kept: mean over examples, with a band.

    `x` is in per cent of the input; `mean`, `low` and `high` are as long as `x`. A point with NaN is left out.
    """

    method: str
    metric: str
    x: ArrayLike
    mean: ArrayLike
    low: ArrayLike
    high: ArrayLike
    x_label: str = "% of the input"
    y_label: str = "mean"


class Dot(NamedTuple):
    """A point of a line with its tooltip."""

    x: float
    y: float
    title: str


class ChartLine(NamedTuple):
    """A method's line in SVG units.

    `color`: number of its color, 0 for the neutral one of the control; `dashes`: number of its dash pattern. `path`
    and `band` are lists of points. `label` is written at (`label_x`, `label_y`), beside the line's end. `shown`: False
    for a line that is drawn faintly.
    """

    method: str
    color: int
    dashes: int
    path: str
    band: str
    dots: list[Dot]
    label: str
    label_x: float
    label_y: float
    shown: bool


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    text: str


class Chart(NamedTuple):
    """All lines of one metric, in a frame of WIDTH × HEIGHT units."""

    metric: str
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[ChartLine]


def make_charts(
    curves: Sequence[Curve], series: Mapping[str, str], colors: int, shown: Collection[str] | None = None
) -> list[Chart]:
    """Return one chart per metric, in the order of the curves.

    Args:
        curves: of all metrics and methods.
        series: the title of every method; a method has the same color in all charts.
        colors: number of colors, after which dash patterns change.
        shown: methods that are drawn strongly; default: all.
    """
    styles = dict[str, tuple[int, int]]()
    for name in series:
        if name.partition("?")[0] != CONTROL:
            styles[name] = (len(styles) % colors + 1, len(styles) // colors)
    by_metric = dict[str, list[Curve]]()
    for curve in curves:
        by_metric.setdefault(curve.metric, []).append(curve)
    charts = []
    for group in by_metric.values():
        chart = _make_chart(group, series, styles, shown)
        charts.append(chart._replace(lines=spread_labels(chart.lines)))
    return charts


def spread_labels(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """Return the lines with the labels of shown lines moved apart and kept inside the frame."""
    order = sorted((at for at, line in enumerate(lines) if line.shown), key=lambda at: lines[at].label_y)
    places = [lines[at].label_y for at in order]
    # Labels are pushed down where they overlap, then the lowest ones back up into the frame.
    for at in range(1, len(places)):
        places[at] = max(places[at], places[at - 1] + APART)
    for at in range(len(places) - 1, -1, -1):
        lowest = HEIGHT - _BOTTOM if at == len(places) - 1 else places[at + 1] - APART
        places[at] = min(places[at], lowest)
    moved = dict(zip(order, places, strict=True))
    return [line._replace(label_y=round(moved.get(at, line.label_y), 1)) for at, line in enumerate(lines)]


def choose_ticks(low: float, high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """Return about `about` round numbers, or `whole` ones, that enclose the range; an empty range is widened to 1."""
    span = high - low if high > low else 1.0
    power = 10 ** math.floor(math.log10(span / about))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10)]
    step = next(step for step in steps if step * about >= span and not (whole and step % 1))
    # The tolerance keeps 0.30000000000000004 from adding a tick at 0.4.
    first, last = math.floor(low / step + 1e-9), math.ceil(max(high, low + span * (high == low)) / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _make_chart(
    curves: Sequence[Curve],
    series: Mapping[str, str],
    styles: Mapping[str, tuple[int, int]],
    shown: Collection[str] | None,
) -> Chart:
    horizontal = _axis_ticks([curve.x for curve in curves])
    heights: list[ArrayLike] = []
    for curve in curves:
        heights += [curve.mean, curve.low, curve.high]
    vertical = _axis_ticks(heights)
    lines, order = [], list(series)
    for curve in sorted(curves, key=lambda curve: order.index(curve.method)):
        line = _make_line(curve, series[curve.method], horizontal, vertical, styles.get(curve.method, (0, 0)))
        lines.append(line._replace(shown=shown is None or curve.method in shown))
    x_ticks = [Tick(_to_svg_x(value, horizontal), f"{value:g}") for value in horizontal]
    y_ticks = [Tick(_to_svg_y(value, vertical), f"{value:g}") for value in vertical]
    return Chart(curves[0].metric, curves[0].x_label, curves[0].y_label, x_ticks, y_ticks, lines)


def _axis_ticks(values: Sequence[ArrayLike]) -> list[float]:
    known = np.concatenate([_to_floats(array) for array in values])
    known = known[np.isfinite(known)]
    if not len(known):
        return [0.0, 1.0]
    return choose_ticks(float(known.min()), float(known.max()), whole=not (known % 1).any())


def _make_line(
    curve: Curve, label: str, horizontal: Sequence[float], vertical: Sequence[float], style: tuple[int, int]
) -> ChartLine:
    x, mean, low, high = (_to_floats(values) for values in (curve.x, curve.mean, curve.low, curve.high))
    order = np.argsort(x, kind="stable")
    x, mean, low, high = x[order], mean[order], low[order], high[order]
    drawn = np.isfinite(x) & np.isfinite(mean)
    path, dots = Points(), []
    for a, b in zip(x[drawn], mean[drawn], strict=True):
        path.append((_to_svg_x(a, horizontal), _to_svg_y(b, vertical)))
        dots.append(Dot(round(path[-1][0], 1), round(path[-1][1], 1), f"{label}: {b:.3g} at {a:g} %"))
    banded = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    # The band's outline runs along its upper edge and back along the lower one.
    edge = [*zip(x[banded], high[banded], strict=True), *zip(x[banded][::-1], low[banded][::-1], strict=True)]
    band = _format_points((_to_svg_x(a, horizontal), _to_svg_y(b, vertical)) for a, b in edge)
    end = dots[-1] if dots else Dot(_LEFT, HEIGHT - _BOTTOM, "")
    place = round(end.x + 8, 1), round(end.y + 4, 1)
    return ChartLine(curve.method, *style, _format_points(path), band, dots, label, *place, shown=True)


def _to_floats(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _to_svg_x(value: float, axis: Sequence[float]) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (value - axis[0]) / (axis[-1] - axis[0])


def _to_svg_y(value: float, axis: Sequence[float]) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (axis[-1] - value) / (axis[-1] - axis[0])


def _format_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
