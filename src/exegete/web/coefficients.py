"""Heatmaps of the coefficients that learned explainers give to heads, layers and features."""

from __future__ import annotations

from typing import Any

from exegete.explainers import Explainer
from exegete.studies.tables.coefficients import COEFFICIENTS
from exegete.web.heatmaps import Heatmap, make_heatmap


def has_coefficients(method: Explainer) -> bool:
    """Return whether the method has coefficients that can be shown."""
    return type(method) in COEFFICIENTS


def make_coefficient_heatmaps(method: Explainer) -> dict[str, Heatmap]:
    """Return one heatmap per kind of coefficient, with one row per layer and the last layer first."""
    coefficients = COEFFICIENTS[type(method)](method)
    return {kind: _make_heatmap(values.detach().cpu(), method) for kind, values in coefficients.items()}


def _make_heatmap(values: Any, method: Any) -> Heatmap:
    # An explainer of the last layers only has fewer rows than the model has layers.
    layers = range(method.n_layers, method.n_layers - len(values), -1)
    columns = [str(number) for number in range(1, values.shape[1] + 1)]
    has_negative = bool((values < 0).any())
    return make_heatmap([f"layer {n}" for n in layers], columns, values.flip(0).numpy(), signed=has_negative)
