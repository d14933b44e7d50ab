"""Teacher scores: the importance of each position in an explanation of the gold label, without a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.explainers import Explainer
from exegete.explainers.base import DimensionwiseExplainer
from exegete.explainers.gradients.deep_lift import DeepLift
from exegete.explainers.gradients.input_x_gradient import InputXGradient
from exegete.explainers.gradients.integrated_gradients import IntegratedGradients
from exegete.models import Batch, ExplainedModel

Aggregation = Literal["l2", "mean"]
MIN_PROBABILITY = 1e-8


def default_aggregation(explainer: Explainer) -> Aggregation:
    """`l2` for the paper's teachers: integrated gradients of a number of points, input × gradient and DeepLift."""
    paths = type(explainer) is IntegratedGradients and explainer.n_steps != "auto"
    if (paths or type(explainer) in (InputXGradient, DeepLift)) and explainer.signed:
        return "l2"
    return "mean"


def set_aggregation(explainer: Explainer, aggregation: Aggregation) -> Explainer:
    """The teacher as it is asked; raises ExegeteError for `l2` of a method that has one score a position."""
    if aggregation == "mean":
        return explainer
    if not isinstance(explainer, DimensionwiseExplainer):
        raise ExegeteError(f"{explainer.name} has one score a position, no norm over dimensions: use 'mean'")
    return replace(explainer, aggregate="l2")


def compute_importance(
    explainer: Explainer, model: ExplainedModel, batch: Batch, target: Tensor, aggregation: Aggregation
) -> Tensor:
    """[B, L] at least 0, without a graph and without dropout; 0 outside content.

    `l2`: the norm of the contributions of a position's embedding dimensions; `mean`: the magnitude of their mean, up to
    a factor, which is that of the method's own score.

    Raises:
        ExegeteError: `l2` of a method that has one score a position.
    """
    teacher = set_aggregation(explainer, aggregation)
    with torch.no_grad(), model.evaluation_mode():
        target = model.resolve_target(batch, target)
        scores = teacher.scores(model.with_output(teacher.output), batch, target).abs()
    return scores.masked_fill(~batch.content, 0.0)


def select_least_important(scores: Tensor, content: Tensor, ratio: float) -> Tensor:
    """[B, L] bool: the max(1, ⌈ratio · l⌉) lowest of each example's l content positions; equal ones: the first."""
    count = content.sum(1, keepdim=True)
    size = (ratio * count.double() - 1e-9).ceil().clamp(min=1)
    order = scores.masked_fill(~content, torch.inf).argsort(dim=1, stable=True)
    return (order.argsort(dim=1) < size) & content


def to_distribution(scores: Tensor, content: Tensor) -> Tensor:
    """[B, L] Scores of at least 0 as shares of 1 over content, none of them 0; evenly spread where all are 0."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~content, 0.0)
    shares = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    shares = (shares + MIN_PROBABILITY).masked_fill(~content, 0.0)
    return shares / shares.sum(1, keepdim=True).clamp(min=MIN_PROBABILITY)
