"""Explanations as matplotlib figures: bars, a waterfall to the model's output, a heat map of targets and units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from expound.errors import ExpoundError, check_choice
from expound.reports.highlighted.colors import LEVELS, LIGHT, level_to_color
from expound.reports.highlighted.pieces import scores_to_levels
from expound.reports.highlighted.regions import DrawnImage, decode_data_url, place_regions
from expound.reports.text import shorten

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

KINDS = ("bars", "waterfall", "heatmap")
MOST = 20
"""Units with a bar of their own, the strongest ones; a waterfall has one more for all others together."""


def plot_explanation(item: Explanation, kind: str | None = None) -> Figure:
    """Return the figure, see `Explanation.plot`."""
    kind = kind or ("bars" if len(item.targets) == 1 else "heatmap")
    check_choice("plot", kind, KINDS)
    size = (min(24.0, 2 + 0.5 * len(item.units)), 1.5 + 0.4 * len(item.targets))
    if kind != "heatmap":
        size = (7.0, 1.2 + 0.3 * min(len(item.units), MOST + 1))
    images = place_regions(item, scores_to_levels(item.scores.sum(0, keepdims=True))[0])
    figure = Figure(figsize=(size[0] + 3 * len(images), max(size[1], 3.0 if images else 0.0)), layout="constrained")
    widths = [*[3.0] * len(images), size[0]]
    *pictures, axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for picture, image in zip(pictures, images, strict=True):
        _draw_image(picture, image, item)
    draw = {"bars": _draw_bars, "waterfall": _draw_waterfall, "heatmap": _draw_heatmap}[kind]
    draw(axes, item)
    return figure


def _draw_image(axes: Axes, image: DrawnImage, item: Explanation) -> None:
    """Draw an image under its regions, whose color is stronger the stronger their score is."""
    axes.imshow(decode_data_url(image.url), extent=(0, image.width, image.height, 0))
    for region in image.regions:
        color = level_to_color(LIGHT, LEVELS if region.level > 0 else -LEVELS, signed=item.signed)
        strength = 0.75 * abs(region.level) / LEVELS if color else 0.0
        for x, y, width, height in region.rectangles:
            axes.add_patch(Rectangle((x, y), width, height, color=color, alpha=strength, linewidth=0))
    axes.set_axis_off()


def _draw_bars(axes: Axes, item: Explanation) -> None:
    scores = item.scores.sum(0)
    shown = np.sort(np.argsort(-np.abs(scores), kind="stable")[:MOST])
    axes.barh(np.arange(len(shown)), scores[shown], color=_pick_colors(item, scores[shown]))
    _name_rows(axes, [item.units[unit].text for unit in shown], item)


def _draw_waterfall(axes: Axes, item: Explanation) -> None:
    output = item.target.output
    if output is None or len(item.targets) > 1:
        raise ExpoundError(
            f"a waterfall adds scores up to one output, and {item.method}'s have no such sum: choose plot('bars'), "
            "or a method with a convergence delta, as integrated_gradients or decompx_linear"
        )
    scores = item.scores[0].astype(np.float64)
    order = np.argsort(-np.abs(scores), kind="stable")
    shown, others = order[:MOST], order[MOST:]
    steps, names = scores[shown].tolist(), [item.units[unit].text for unit in shown]
    if len(others):
        steps.append(float(scores[others].sum()))
        names.append(f"{len(others)} others")
    # Where no unit counts: what the baseline and the biases give. The last bar therefore ends at the output.
    starts = output - sum(steps) + np.concatenate([[0.0], np.cumsum(steps)[:-1]])
    axes.barh(np.arange(len(steps)), steps, left=starts, color=_pick_colors(item, np.array(steps)))
    axes.axvline(output, color=LIGHT.muted, linewidth=1, linestyle="--")
    _name_rows(axes, names, item)
    axes.set_xlabel(f"from {starts[0]:.3g} to the model's output {output:.3g}")


def _draw_heatmap(axes: Axes, item: Explanation) -> None:
    largest = float(np.abs(item.scores).max(initial=0, where=np.isfinite(item.scores))) or 1.0
    colors, smallest = "Purples", 0.0
    if item.signed:
        colors, smallest = "RdBu", -largest
    image = axes.imshow(item.scores, cmap=colors, aspect="auto", vmax=largest)
    image.set_clim(smallest, largest)
    axes.set_xticks(np.arange(len(item.units)), [_shorten(text) for text in item.unit_texts], rotation=60, ha="right")
    axes.set_yticks(np.arange(len(item.targets)), [_shorten(text) for text in item.target_texts])
    axes.figure.colorbar(image, ax=axes)


def _pick_colors(item: Explanation, scores: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[str]:
    if not item.signed:
        return [LIGHT.unsigned[-1]] * len(scores)
    colors = []
    for score in scores.tolist():
        colors.append(LIGHT.negative[-1] if score < 0 else LIGHT.positive[-1])
    return colors


def _name_rows(axes: Axes, names: list[str], item: Explanation) -> None:
    axes.set_yticks(np.arange(len(names)), [_shorten(name) for name in names])
    axes.invert_yaxis()
    axes.set_title(f"{item.method}: {_shorten(' '.join(item.target_texts))}", fontsize="medium", loc="left")


def _shorten(text: str) -> str:
    # matplotlib reads a pair of dollar signs as a formula.
    return shorten(text, 40).replace("$", r"\$")
