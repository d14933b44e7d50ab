"""The coefficients that learned explainers give to attention heads, layers and features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.explainers.learned.parameterized_attention import ParameterizedAttention

COEFFICIENTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    ParameterizedAttention: lambda each: {"heads": each.head_weights()},
    InterpretableAttention: lambda each: {
        "heads": each.head_coefficients,
        "layers": each.layer_coefficients[:, None],
        "query features": each.query_features.mean(1),
        "key features": each.key_features.mean(1),
    },
}
"""By class of explainer: its coefficients as matrices with one row per layer."""
