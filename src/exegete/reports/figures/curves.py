"""Faithfulness curves as numbers, and their geometry in a chart; drawn as SVG by the HTML report."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exegete.reports.tables.leaderboard import CONTROL

Points = list[tuple[float, float]]

WIDTH, HEIGHT = 540, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 176, 12, 42
APART = 14
"""Units between two labels."""


class Curve(NamedTuple):
    """How a metric's score moves as more of the input is removed or kept, mean over examples with a band.

    `x` is in percent of the input, `mean`, `low` and `high` are as long. NaN leaves a point out.
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
    """A point of a line: where it is drawn and what it says."""

    x: float
    y: float
    title: str


class ChartLine(NamedTuple):
    """A method's line: SVG point lists, its dots, and the numbers of its colour (0: neutral) and of its dashes.

    `label` is written at (`label_x`, `label_y`), beside its end. Of many lines those that are not `shown` stay faint.
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
    """A chart a metric, in the order they come.

    `series`: all methods, which keep their colour in every chart, and what people call them. `shown`: those that stand
    out; default: all.
    """
    metrics = dict.fromkeys(curve.metric for curve in curves)
    coloured = [name for name in series if not _is_control(name)]
    styles = {name: (at % colors + 1, at // colors) for at, name in enumerate(coloured)}
    drawn = [
        _make_chart([curve for curve in curves if curve.metric == metric], series, styles, shown) for metric in metrics
    ]
    return [chart._replace(lines=spread_labels(chart.lines)) for chart in drawn]


def spread_labels(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """The lines with the labels of those that are shown moved apart, none beyond the frame's lower end."""
    order = sorted((at for at, line in enumerate(lines) if line.shown), key=lambda at: lines[at].label_y)
    places = [lines[at].label_y for at in order]
    for at in range(1, len(places)):
        places[at] = max(places[at], places[at - 1] + APART)
    for at in range(len(places) - 1, -1, -1):
        lowest = HEIGHT - _BOTTOM if at == len(places) - 1 else places[at + 1] - APART
        places[at] = min(places[at], lowest)
    moved = dict(zip(order, places, strict=True))
    return [line._replace(label_y=round(moved.get(at, line.label_y), 1)) for at, line in enumerate(lines)]


def choose_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that enclose the range, `about` as many as asked; one unit apart where the range is a point."""
    span = high - low if high > low else 1.0
    power = 10 ** math.floor(math.log10(span / about))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * about >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(max(high, low + span * (high == low)) / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _is_control(method: str) -> bool:
    return method.partition("?")[0] == CONTROL


def _make_chart(
    curves: Sequence[Curve],
    series: Mapping[str, str],
    styles: Mapping[str, tuple[int, int]],
    shown: Collection[str] | None,
) -> Chart:
    horizontal = _axis_ticks(curve.x for curve in curves)
    vertical = _axis_ticks(values for curve in curves for values in (curve.mean, curve.low, curve.high))
    lines = [
        _make_line(curve, series[curve.method], horizontal, vertical, styles.get(curve.method, (0, 0)))._replace(
            shown=shown is None or curve.method in shown
        )
        for curve in sorted(curves, key=lambda curve: list(series).index(curve.method))
    ]
    x_ticks = [Tick(_to_svg_x(value, horizontal), f"{value:g}") for value in horizontal]
    y_ticks = [Tick(_to_svg_y(value, vertical), f"{value:g}") for value in vertical]
    return Chart(curves[0].metric, curves[0].x_label, curves[0].y_label, x_ticks, y_ticks, lines)


def _axis_ticks(values: Iterable[ArrayLike]) -> list[float]:
    known = np.concatenate([_to_floats(each) for each in values])
    known = known[np.isfinite(known)]
    return choose_ticks(float(known.min()), float(known.max())) if len(known) else [0.0, 1.0]


def _make_line(
    curve: Curve, label: str, horizontal: Sequence[float], vertical: Sequence[float], style: tuple[int, int]
) -> ChartLine:
    x, mean, low, high = (_to_floats(values) for values in (curve.x, curve.mean, curve.low, curve.high))
    order = np.argsort(x, kind="stable")
    x, mean, low, high = x[order], mean[order], low[order], high[order]
    drawn, banded = np.isfinite(x) & np.isfinite(mean), np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    edge = [*zip(x[banded], high[banded], strict=True), *zip(x[banded][::-1], low[banded][::-1], strict=True)]
    path = [(_to_svg_x(a, horizontal), _to_svg_y(b, vertical)) for a, b in zip(x[drawn], mean[drawn], strict=True)]
    titles = [f"{label}: {b:.3g} at {a:g} %" for a, b in zip(x[drawn], mean[drawn], strict=True)]
    dots = [Dot(round(a, 1), round(b, 1), title) for (a, b), title in zip(path, titles, strict=True)]
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
