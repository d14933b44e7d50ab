"""The target's score and its gradient at many points of embedding space, packed into passes by a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from expound.models import Batch, Capture, ExplainedModel
from expound.models.batch import get_token_budget, pack
from expound.models.passes.hooks import skip_unread_positions

Rule = Literal["gausslegendre", "riemann_middle", "riemann_trapezoid"]


class GradientsAt(NamedTuple):
    """Results at m of the points: their indices `points` [m], the target's `score` [m], its `gradient` [m, L, d]."""

    points: Tensor
    score: Tensor
    gradient: Tensor


def gradients_at(
    model: ExplainedModel,
    batch: Batch,
    target: Tensor,
    rows: Tensor,
    at: Callable[[Tensor], Tensor],
    points_per_pass: int | None = None,
) -> Iterator[GradientsAt]:
    """Yield the gradients at M points, each once, long examples first, in passes with little padding.

    Args:
        model: what to explain.
        batch: B examples.
        target: [B], or [B, 2] for spans.
        rows: [M], the example of each point.
        at: a function from the indices of points [m] to their input embeddings [m, L, d].
        points_per_pass: default: by tokens.

    Gradients keep a graph to the model's weights if gradients are enabled.
    """
    keep_graph = torch.is_grad_enabled()
    capture = Capture(differentiable_twice=keep_graph)
    for index in _pack_points(batch, rows, points_per_pass):
        part, columns = batch.select(rows[index]).trim_padding()
        with torch.enable_grad(), skip_unread_positions(model, part):
            inputs = at(index)[:, columns]
            if not (keep_graph and inputs.requires_grad):
                inputs = inputs.detach().requires_grad_()
            shifted = model.task.shift(target[rows[index]], columns.start)
            score = model.task.score(model(part, inputs, capture).logits, shifted)
            (slope,) = torch.autograd.grad(score.sum(), inputs, create_graph=keep_graph)
        # The padding that was cut off gets a zero gradient.
        outside = (0, 0, columns.start, batch.length - columns.stop)
        yield GradientsAt(index, score if keep_graph else score.detach(), torch.nn.functional.pad(slope, outside))


def scores_at(
    model: ExplainedModel, batch: Batch, target: Tensor, rows: Tensor, at: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the target's score [M] at each point, without gradients; for the arguments see `gradients_at`."""
    parts, capture = [], Capture(differentiable_twice=torch.is_grad_enabled())
    for index in _pack_points(batch, rows, None):
        part, columns = batch.select(rows[index]).trim_padding()
        with skip_unread_positions(model, part):
            logits = model(part, at(index)[:, columns], capture).logits
        parts.append((index, model.task.score(logits, model.task.shift(target[rows[index]], columns.start))))
    order = torch.cat([index for index, _ in parts])
    return torch.cat([score for _, score in parts])[order.argsort()]


def repeat_rows(batch: Batch, count: int) -> tuple[Tensor, Tensor]:
    """Return, for `count` points per example, the row and the number of each point: [B · count] twice."""
    rows = torch.arange(len(batch), device=batch.device).repeat_interleave(count)
    return rows, torch.arange(count, device=batch.device).repeat(len(batch))


@cache
def quadrature(rule: Rule, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a rule on [0, 1]; weights sum to 1."""
    if rule == "gausslegendre":
        # NumPy's nodes are on [-1, 1].
        nodes, weights = np.polynomial.legendre.leggauss(points)
        return (nodes + 1) / 2, weights / 2
    if rule == "riemann_middle":
        return (np.arange(points) + 0.5) / points, np.full(points, 1 / points)
    weights = np.full(points, 1 / (points - 1))
    weights[[0, -1]] /= 2
    return np.linspace(0, 1, points), weights


def _pack_points(batch: Batch, rows: Tensor, points_per_pass: int | None) -> Iterator[Tensor]:
    """Yield the indices of the points of each pass, points of long examples first."""
    sizes, order = batch.attended.sum(1)[rows].sort(descending=True, stable=True)
    if points_per_pass:
        yield from order.split(points_per_pass)
        return
    for part in pack(sizes.tolist(), get_token_budget(batch.device)):
        yield order[part]
