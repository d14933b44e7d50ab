"""Coefficients of learned explainers for heads, layers and features, as coloured cells."""

from __future__ import annotations

from typing import Any

from exegete.explainers import Explainer
from exegete.studies.tables.coefficients import COEFFICIENTS
from exegete.web.heatmaps import Heatmap, make_heatmap


def has_coefficients(method: Explainer) -> bool:
    """Whether the method has coefficients that can be shown."""
    return type(method) in COEFFICIENTS


def make_coefficient_heatmaps(method: Explainer) -> dict[str, Heatmap]:
    """By kind of coefficient: a row a layer, the last one first."""
    return {kind: _grid(values.detach().cpu(), method) for kind, values in COEFFICIENTS[type(method)](method).items()}


def _grid(values: Any, method: Any) -> Heatmap:
    rows = range(method.n_layers, method.n_layers - len(values), -1)
    columns = [str(number) for number in range(1, values.shape[1] + 1)]
    return make_heatmap([f"layer {n}" for n in rows], columns, values.flip(0).numpy(), signed=bool((values < 0).any()))
