"""Coefficients of learned explainers as tables of colored cells: heads by layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from expound.explainers import Explainer
from expound.explainers.learned.coefficients import COEFFICIENTS
from expound.reports.highlighted import colors
from expound.reports.highlighted.highlight import format_signed
from expound.reports.table import Cell, Table


def has_coefficients(method: Explainer) -> bool:
    """Return whether the method has coefficients that can be shown."""
    return type(method) in COEFFICIENTS


def make_coefficient_heatmaps(method: Explainer) -> dict[str, Table]:
    """Return one heatmap per kind of coefficient, with one row per layer and the last layer first."""
    coefficients = COEFFICIENTS[type(method)](method)
    return {kind: _make_coefficient_heatmap(values.detach().cpu(), method) for kind, values in coefficients.items()}


def _make_coefficient_heatmap(values: Any, method: Any) -> Table:
    """Return a table of the coefficients [layers, heads]; the largest magnitude has the darkest shade."""
    array = values.flip(0).double().numpy()
    # NaN and infinity must not decide the scale: every other cell would lose its color.
    largest = np.max(np.abs(array), initial=0.0, where=np.isfinite(array))
    # An explainer of the last layers only has fewer rows than the model has layers.
    layers, rows = range(method.n_layers, method.n_layers - len(values), -1), []
    for layer, line in zip(layers, array.tolist(), strict=True):
        row = [Cell(f"layer {layer}")]
        for value in line:
            shade = colors.level_to_css_class(colors.score_to_level(value, largest), signed=bool((array < 0).any()))
            row.append(Cell(f"{value:.2f}", value=value, tip=format_signed(value), shade=shade))
        rows.append(row)
    return Table(["", *map(str, range(1, values.shape[1] + 1))], rows)
