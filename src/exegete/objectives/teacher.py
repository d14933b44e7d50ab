"""Teacher scores: the importance of each position in an explanation of the gold label, without a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.explainers import Explainer
from exegete.explainers.base import embeddings_with_gradient, gradient
from exegete.explainers.deep_lift import DeepLift
from exegete.explainers.input_x_gradient import InputXGradient
from exegete.explainers.integrated_gradients import IntegratedGradients
from exegete.models import Batch, ExplainedModel

Aggregation = Literal["l2", "mean"]
Contributions = Callable[[ExplainedModel, Batch, Tensor], Tensor]
SMALLEST = 1e-8


def contributions_of(explainer: Explainer) -> Contributions | None:
    """The function that gives a method's scores for each embedding dimension, [B, L, d]; None if there is none."""
    if type(explainer) is IntegratedGradients and explainer.n_steps != "auto":
        method = explainer

        def integrated(model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
            start = model.reference(batch, method.baselines)
            return method.contributions(model, batch, target, start, model.embed(batch))

        return integrated
    if type(explainer) is DeepLift:
        return explainer.contributions
    return _input_x_gradient if type(explainer) is InputXGradient else None


def importance(
    explainer: Explainer, model: ExplainedModel, batch: Batch, target: Tensor, aggregation: Aggregation
) -> Tensor:
    """[B, L] at least 0, without a graph and without dropout; 0 outside content.

    `l2`: the norm of the contributions of a position's embedding dimensions; `mean`: the magnitude of their mean, up to
    a factor, which is that of the method's own score.

    Raises:
        ExegeteError: `l2` of a method that has one score a position.
    """
    with torch.no_grad():
        if aggregation == "mean":
            return explainer.attribute(model, batch, target).abs()
        contributions = contributions_of(explainer)
        if contributions is None:
            raise ExegeteError(f"{explainer.name} has one score a position, no norm over dimensions: use 'mean'")
        with model.evaluating():
            norms: Tensor = torch.linalg.vector_norm(contributions(model, batch, target), dim=-1)
        return norms.masked_fill(~batch.content, 0.0)


def least_important(scores: Tensor, content: Tensor, ratio: float) -> Tensor:
    """[B, L] bool: the max(1, ⌈ratio · l⌉) lowest of each example's l content positions; equal ones: the first."""
    count = content.sum(1, keepdim=True)
    size = (ratio * count.double() - 1e-9).ceil().clamp(min=1)
    order = scores.masked_fill(~content, torch.inf).argsort(dim=1, stable=True)
    return (order.argsort(dim=1) < size) & content


def distribution(scores: Tensor, content: Tensor) -> Tensor:
    """[B, L] Scores of at least 0 as shares of 1 over content, none of them 0; evenly spread where all are 0."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~content, 0.0)
    shares = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    shares = (shares + SMALLEST).masked_fill(~content, 0.0)
    return shares / shares.sum(1, keepdim=True).clamp(min=SMALLEST)


def _input_x_gradient(model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
    with torch.enable_grad():
        embeddings = embeddings_with_gradient(model, batch, keep_graph=False)
        score = model.task.score(model(batch, embeddings).logits, target)
        return gradient(score, embeddings, keep_graph=False) * embeddings.detach()
