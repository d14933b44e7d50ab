"""Dots of runs, scatter plots and heat maps of a study as matplotlib figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from expound.reports.figures.curves import escape_mathtext, make_panels
from expound.reports.highlighted.colors import LIGHT
from expound.reports.tables.leaderboard import Floats

MARKERS = "osD^vP*X<"


class Panel(NamedTuple):
    """A measurement of single runs, by the name of their group."""

    title: str
    values: Mapping[str, Floats]


class Dots(NamedTuple):
    """A series of a scatter plot; `x_error` and `y_error` are half-widths of error bars, or None."""

    name: str
    x: Floats
    y: Floats
    x_error: Floats | None
    y_error: Floats | None
    x_label: str
    y_label: str
    title: str = ""


class Matrix(NamedTuple):
    """Values [R, C] of a heat map whose colors range from -`limit` to `limit`; `written`: print the values."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Floats
    limit: float = 1.0
    written: bool = True


def plot_strips(strips: Sequence[Panel]) -> Figure:
    """Return a figure with one panel per measurement: one column per name, one dot per run, a line at the mean."""
    figure, panels = make_panels(len(strips), height=4.2)
    for axes, panel in zip(panels, strips, strict=True):
        for place, values in enumerate(panel.values.values()):
            color = LIGHT.series[place % len(LIGHT.series)]
            # Runs are spread sideways, so that equal values do not hide each other.
            shift = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else np.zeros(1)
            axes.scatter(place + shift, values, s=16, color=color, alpha=0.75, linewidths=0)
            if np.isfinite(values).any():
                axes.hlines(np.nanmean(values), place - 0.3, place + 0.3, color=color)
        axes.set_xticks(
            range(len(panel.values)), [escape_mathtext(name) for name in panel.values], rotation=40, ha="right"
        )
        axes.set_title(escape_mathtext(panel.title))
    return figure


def plot_scatter(plots: Sequence[Sequence[Dots]], lines: Mapping[str, float] | None = None) -> Figure:
    """Return a figure with one panel per pair of measurements; `lines`: x of named vertical lines."""
    figure, panels = make_panels(len(plots), height=3.8)
    for axes, series in zip(panels, plots, strict=True):
        for number, dots in enumerate(series):
            _draw_dots(axes, dots, number)
        for name, at in (lines or {}).items():
            axes.axvline(at, color=LIGHT.muted, linestyle="--", linewidth=1)
            axes.annotate(
                escape_mathtext(name), (at, 1), xycoords=("data", "axes fraction"), fontsize="x-small", va="top"
            )
        if series:
            axes.set(xlabel=escape_mathtext(series[0].x_label), ylabel=escape_mathtext(series[0].y_label))
            axes.set_title(escape_mathtext(series[0].title), fontsize="medium")
            axes.legend(fontsize="x-small")
    return figure


def plot_heat_maps(matrices: Sequence[Matrix]) -> Figure:
    """Return a figure with one heat map per matrix."""
    tallest = max((len(matrix.rows) for matrix in matrices), default=1)
    figure, panels = make_panels(len(matrices), height=2.2 + 0.35 * tallest)
    for axes, matrix in zip(panels, matrices, strict=True):
        image = axes.imshow(matrix.values, vmin=-matrix.limit, vmax=matrix.limit, cmap="PuOr_r", aspect="auto")
        axes.set_xticks(
            range(len(matrix.columns)), [escape_mathtext(n) for n in matrix.columns], rotation=40, ha="right"
        )
        axes.set_yticks(range(len(matrix.rows)), [escape_mathtext(name) for name in matrix.rows])
        axes.set_title(escape_mathtext(matrix.title))
        for (row, column), value in np.ndenumerate(matrix.values):
            if matrix.written and math.isfinite(value):
                # Both ends of the color map are dark.
                ink = "white" if abs(value) > 0.7 * matrix.limit else "black"
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize="x-small", color=ink)
        figure.colorbar(image, ax=axes)
    return figure


def _draw_dots(axes: Axes, dots: Dots, number: int) -> None:
    color, marker = LIGHT.series[number % len(LIGHT.series)], MARKERS[number % len(MARKERS)]
    axes.errorbar(
        dots.x, dots.y, xerr=dots.x_error, yerr=dots.y_error, fmt=marker, markersize=5, capsize=2, color=color,
        alpha=0.85, linestyle="none", label=escape_mathtext(dots.name),
    )  # fmt: skip
