"""The same numbers as matplotlib figures; each is returned, none is shown, and no global state is touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from exegete.errors import ExegeteError
from exegete.reports.colors import LIGHT
from exegete.reports.curves import Curve
from exegete.reports.leaderboard import Leaderboard
from exegete.reports.pieces import grid

if TYPE_CHECKING:
    from exegete.reports.attributions import Attribution

_DIVERGING = LinearSegmentedColormap.from_list("exegete_signed", [LIGHT.negative[-1], "#ffffff", LIGHT.positive[-1]])
_SEQUENTIAL = LinearSegmentedColormap.from_list("exegete_unsigned", ["#ffffff", LIGHT.unsigned[-1]])


def curve_figure(curves: Sequence[Curve]) -> Figure:
    """One panel a metric, one line a method, with its band."""
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    methods = list(dict.fromkeys(curve.method for curve in curves))
    figure, drawn = panels(len(metrics))
    for axes, metric in zip(drawn, metrics, strict=True):
        chosen = [curve for curve in curves if curve.metric == metric]
        for curve in chosen:
            _draw_curve(axes, curve, methods.index(curve.method))
        axes.set(title=literal(metric), xlabel=literal(chosen[0].x_label), ylabel=literal(chosen[0].y_label))
        axes.legend(fontsize="small")
    return figure


def leaderboard_figure(board: Leaderboard) -> Figure:
    """One panel a metric, one bar a method, with the 95 % interval."""
    figure, drawn = panels(len(board.cards), height=1.2 + 0.3 * len(board.rows))
    places = np.arange(len(board.rows))
    for column, (axes, card) in enumerate(zip(drawn, board.cards, strict=True)):
        mean = board.mean[:, column]
        reach = np.abs(np.stack([mean - board.low[:, column], board.high[:, column] - mean]))
        axes.barh(places, mean, xerr=reach, color=LIGHT.series[0], ecolor=LIGHT.text, capsize=2)
        axes.set_yticks(places, [literal(name) for name in board.rows])
        axes.invert_yaxis()
        axes.set_title(literal(card.title))
    return figure


def heat_map(attribution: Attribution) -> Figure:
    """The scores as colours: an image's patches, layers by tokens where layers are known, else the words in a row."""
    values, columns, rows = _matrix(attribution)
    finite = np.abs(values[np.isfinite(values)])
    top = float(finite.max(initial=0.0)) or 1.0
    figure = Figure(figsize=(max(3.0, 1.5 + 0.32 * values.shape[1]), max(1.8, 1.2 + 0.3 * values.shape[0])))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    low, colours = (-top, _DIVERGING) if attribution.signed else (0.0, _SEQUENTIAL)
    image = axes.imshow(values, vmin=low, vmax=top, cmap=colours, aspect="equal" if not columns else "auto")
    axes.set_xticks(range(len(columns)), [literal(name) for name in columns], rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(literal(f"{attribution.method}: {attribution.target_label}"))
    figure.colorbar(image, ax=axes)
    return figure


def _matrix(item: Attribution) -> tuple[NDArray[np.float32], Sequence[str], list[str]]:
    if item.image_shape is not None:
        return grid(item), (), []
    if item.layers is not None:
        return item.layers, item.tokens, [str(layer) for layer in range(len(item.layers))]
    names, scores = (item.words, item.word_scores) if item.words else (item.tokens, item.scores)
    if not names:
        raise ExegeteError("heat map: expected an attribution with words, tokens or patches, got an empty one")
    return scores[None], names, [""]


def panels(count: int, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, three a line; `height` of a line in inches."""
    columns = min(3, max(1, count))
    lines = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(4.6 * columns, height * lines))
    figure.set_layout_engine("constrained")
    return figure, [figure.add_subplot(lines, columns, index + 1) for index in range(count)]


def _draw_curve(axes: Axes, curve: Curve, number: int) -> None:
    color, dashes = LIGHT.series[number % len(LIGHT.series)], ["-", "--", ":", "-."][number // len(LIGHT.series) % 4]
    x, mean, low, high = (np.asarray(values, dtype=np.float64) for values in curve[2:6])
    axes.plot(x, mean, color=color, linestyle=dashes, marker="o", markersize=3, label=literal(curve.method))
    axes.fill_between(x, low, high, color=color, alpha=0.14, linewidth=0)


def literal(text: str) -> str:
    """The text as matplotlib shows it literally."""
    return text.replace("$", r"\$")
