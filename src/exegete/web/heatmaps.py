"""Scores as tables of coloured cells: layers by positions, heads by layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exegete.explainers import Explainer
from exegete.reports.explanations import Explanation
from exegete.reports.highlighted import colors
from exegete.studies.tables.coefficients import COEFFICIENTS


class HeatmapCell(NamedTuple):
    """A number and the CSS class of its colour."""

    value: float
    color: str


class Heatmap(NamedTuple):
    """The column names, and each row's name with its cells."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[HeatmapCell]]]


def make_layer_heatmap(item: Explanation) -> Heatmap:
    """Return the scores of each layer without special tokens, the last layer first."""
    positions = [position for position, is_special in enumerate(item.special) if not is_special]
    layers = item.layers if item.layers is not None else item.token_scores
    assert layers is not None
    names = [str(number) for number in range(len(layers), 0, -1)]
    tokens = [item.tokens[position].text for position in positions]
    # Each row is scaled by itself: the scores of layers can differ by orders of magnitude.
    return make_heatmap(names, tokens, layers[::-1, positions], signed=item.signed, by_row=True)


def make_heatmap(
    rows: Sequence[str], columns: Sequence[str], values: ArrayLike, *, signed: bool, by_row: bool = False
) -> Heatmap:
    """Return a heatmap of values [R, C]. The largest magnitude, of all values or of each row, has the darkest shade."""
    array = np.asarray(values, dtype=np.float64)
    # NaN and infinity must not decide the scale: every other cell would lose its colour.
    is_finite = np.isfinite(array)
    top = np.max(np.abs(array), axis=1 if by_row else None, keepdims=True, initial=0.0, where=is_finite)
    tops = np.broadcast_to(top, (len(array), 1))[:, 0]
    cells = [_color_row(line, float(largest), signed) for line, largest in zip(array, tops, strict=True)]
    return Heatmap(columns, list(zip(rows, cells, strict=True)))


def _color_row(values: NDArray[np.float64], largest: float, signed: bool) -> list[HeatmapCell]:
    cells = []
    for value in values.tolist():
        level = colors.score_to_level(value, largest)
        cells.append(HeatmapCell(value, colors.level_to_css_class(level, signed=signed)))
    return cells


def has_coefficients(method: Explainer) -> bool:
    """Return whether the method has coefficients that can be shown."""
    return type(method) in COEFFICIENTS


def make_coefficient_heatmaps(method: Explainer) -> dict[str, Heatmap]:
    """Return one heatmap per kind of coefficient, with one row per layer and the last layer first."""
    coefficients = COEFFICIENTS[type(method)](method)
    return {kind: _make_coefficient_heatmap(values.detach().cpu(), method) for kind, values in coefficients.items()}


def _make_coefficient_heatmap(values: Any, method: Any) -> Heatmap:
    # An explainer of the last layers only has fewer rows than the model has layers.
    layers = range(method.n_layers, method.n_layers - len(values), -1)
    columns = [str(number) for number in range(1, values.shape[1] + 1)]
    has_negative = bool((values < 0).any())
    return make_heatmap([f"layer {n}" for n in layers], columns, values.flip(0).numpy(), signed=has_negative)
