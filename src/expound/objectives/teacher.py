"""Teacher scores of REGEX: the importance of each position for the gold label, without a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.explainers.base import DimensionwiseExplainer
from expound.explainers.gradients.deep_lift import DeepLift
from expound.explainers.gradients.input_x_gradient import InputXGradient
from expound.explainers.gradients.integrated_gradients import IntegratedGradients
from expound.models import Batch, ExplainedModel
from expound.models.outputs import to_float32

Aggregation = Literal["l2", "mean"]
MIN_PROBABILITY = 1e-8


def default_aggregation(explainer: Explainer) -> Aggregation:
    """Return `l2` for the paper's teachers (integrated gradients, input × gradient, DeepLift), else `mean`."""
    # adaptive points are not among the paper's teachers
    has_fixed_steps = type(explainer) is IntegratedGradients and explainer.n_steps != "auto"
    if (has_fixed_steps or type(explainer) in (InputXGradient, DeepLift)) and explainer.signed:
        return "l2"
    return "mean"


def set_aggregation(explainer: Explainer, aggregate: Aggregation) -> Explainer:
    """Return the explainer with this aggregation. Raises ExpoundError for `l2` of an explainer without dimensions."""
    if aggregate == "mean":
        return explainer
    if not isinstance(explainer, DimensionwiseExplainer):
        raise ExpoundError(f"{explainer.name} has one score a position, no norm over dimensions: use 'mean'")
    return replace(explainer, aggregate="l2")


def compute_importance(
    explainer: Explainer, model: ExplainedModel, batch: Batch, target: Tensor, aggregate: Aggregation
) -> Tensor:
    """Return importances [B, L], at least 0 and 0 outside content, computed without a graph and without dropout.

    `l2`: the L2 norm of the contributions of a position's embedding dimensions; `mean`: the magnitude of the
    explainer's own score, which is their mean up to a constant factor.

    Raises:
        ExpoundError: `l2` of an explainer that has one score per position.
    """
    teacher = set_aggregation(explainer, aggregate)
    with torch.no_grad(), model.evaluation_mode():
        target = model.resolve_target(batch, target)
        scores = teacher.compute(model.with_output(teacher.output), batch, [target])[0].scores.abs()
    return scores.masked_fill(~batch.content, 0.0)


def select_least_important(scores: Tensor, content: Tensor, fraction: float) -> Tensor:
    """Return the max(1, ⌈fraction · l⌉) lowest of each example's l content scores [B, L]; of equal ones the first."""
    count = content.sum(1, keepdim=True)
    # without the subtraction 0.07 · 100 = 7.000000000000001 would be rounded up to 8
    size = (fraction * count.double() - 1e-9).ceil().clamp(min=1)
    order = scores.masked_fill(~content, torch.inf).argsort(dim=1, stable=True)
    return (order.argsort(dim=1) < size) & content


def to_distribution(scores: Tensor, content: Tensor) -> Tensor:
    """Return scores of at least 0, normalized to sum to 1 over content [B, L]; uniform if all scores are 0."""
    scores = to_float32(scores).masked_fill(~content, 0.0)
    shares = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    # eq. 6: the constant keeps the logarithms of KL finite
    shares = (shares + MIN_PROBABILITY).masked_fill(~content, 0.0)
    return shares / shares.sum(1, keepdim=True).clamp(min=MIN_PROBABILITY)
