"""Coefficients of learned explainers as tables of colored cells: heads by layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from expound.explainers import Explainer
from expound.explainers.learned.coefficients import COEFFICIENTS
from expound.reports.highlighted import colors
from expound.reports.highlighted.highlight import format_signed
from expound.reports.table import Cell, Table


def make_heatmap(
    names: Sequence[str], columns: Sequence[str], values: ArrayLike, *, signed: bool, by_row: bool = False,
    form: str = "",
) -> Table:  # fmt: skip
    """Return a table of colored cells for values [R, C], written as `form` says.

    The largest magnitude, of all values or of each row, has the darkest shade.
    """
    array = np.asarray(values, dtype=np.float64)
    # NaN and infinity must not decide the scale: every other cell would lose its color.
    is_finite = np.isfinite(array)
    top = np.max(np.abs(array), axis=1 if by_row else None, keepdims=True, initial=0.0, where=is_finite)
    tops = np.broadcast_to(top, (len(array), 1))[:, 0]
    rows = []
    for name, line, largest in zip(names, array.tolist(), tops.tolist(), strict=True):
        row = [Cell(name)]
        for value in line:
            shade = colors.level_to_css_class(colors.score_to_level(value, largest), signed=signed)
            row.append(Cell(form.format(value), value=value, tip=format_signed(value), shade=shade))
        rows.append(row)
    return Table(["", *columns], rows)


def has_coefficients(method: Explainer) -> bool:
    """Return whether the method has coefficients that can be shown."""
    return type(method) in COEFFICIENTS


def make_coefficient_heatmaps(method: Explainer) -> dict[str, Table]:
    """Return one heatmap per kind of coefficient, with one row per layer and the last layer first."""
    coefficients = COEFFICIENTS[type(method)](method)
    return {kind: _make_coefficient_heatmap(values.detach().cpu(), method) for kind, values in coefficients.items()}


def _make_coefficient_heatmap(values: Any, method: Any) -> Table:
    # An explainer of the last layers only has fewer rows than the model has layers.
    layers = range(method.n_layers, method.n_layers - len(values), -1)
    columns = [str(number) for number in range(1, values.shape[1] + 1)]
    has_negative = bool((values < 0).any())
    names = [f"layer {number}" for number in layers]
    return make_heatmap(names, columns, values.flip(0).numpy(), signed=has_negative, form="{:.2f}")
