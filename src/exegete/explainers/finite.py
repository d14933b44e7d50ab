"""Scores that are no finite numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel

if TYPE_CHECKING:
    from exegete.explainers.base import Explainer


def find_nonfinite(scores: Tensor) -> list[int]:
    """Return the rows of scores [B, L] that contain NaN or an infinite number."""
    return (~scores.detach().isfinite()).any(1).nonzero().flatten().tolist()


def require_finite(method: Explainer, model: ExplainedModel, scores: Tensor, numbers: Sequence[int] = ()) -> None:
    """Raise ExegeteError if scores [B, L] contain NaN or an infinite number; `numbers`: indices of the examples."""
    rows = find_nonfinite(scores)
    if rows:
        first = numbers[rows[0]] if numbers else rows[0]
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        dtype = str(model.dtype).removeprefix("torch.")
        advice = "load the model in float32 (--dtype float32)" if model.dtype.itemsize < 4 else "choose another method"
        raise ExegeteError(
            f"{method.name} gives scores that are no finite numbers for example {first}{more}, in {dtype}: {advice}, "
            "or let such examples be counted and left out, with allow_nan=True (--allow-nan)"
        )
