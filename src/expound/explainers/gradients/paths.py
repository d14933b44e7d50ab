"""Base of methods that take gradients at points of embedding space, these gradients, and their sums over parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from expound.explainers.base import Aggregate, Explainer, OutputExplainer, TokenScores
from expound.models import Batch, Capture, ExplainedModel
from expound.models.batch import get_token_budget, pack
from expound.models.passes.forward_mode import PASSES_PER_PART, compute_directional_derivatives
from expound.models.passes.hooks import skip_unread_positions


class Point(NamedTuple):
    """A point in embedding space, `at` [B, L, d], and the `direction` [B, L, d] its gradient is multiplied by."""

    at: Tensor
    direction: Tensor


@dataclass(frozen=True)
class DimensionwiseExplainer(OutputExplainer):
    """Base of methods that compute a contribution [B, L, d] of every embedding dimension, then one score per position.

    Args:
        output: see `OutputExplainer`.
        aggregate: `sum` over the dimensions, signed; `l2`, their norm; `abs`, the sum of their magnitudes.
    """

    aggregate: Aggregate = field(default="sum", kw_only=True)

    @property
    def signed(self) -> bool:
        """Whether scores have a sign: sums do, magnitudes do not."""
        return self.aggregate == "sum"

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point] | None:
        """Return where gradients are taken if scores are Σ_points Σ_d direction ⊙ gradient, else None."""
        return None

    def override_derivatives(self, model: ExplainedModel) -> AbstractContextManager[None]:
        """Return a context in which the model's derivatives follow the method's rules."""
        return nullcontext()

    def aggregate_dimensions(self, contributions: Tensor) -> Tensor:
        """Reduce contributions [..., d] to [...] as `aggregate` says."""
        if self.aggregate == "sum":
            return contributions.sum(-1)
        norms: Tensor = torch.linalg.vector_norm(contributions, ord=2 if self.aggregate == "l2" else 1, dim=-1)
        return norms


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


NO_FORWARD_DERIVATIVE = "forward AD"
"""Words of torch's error for an operation without a forward-mode derivative."""


def is_forward_cheaper(method: Explainer, targets: int, parts: int) -> bool:
    """Return whether forward-mode passes, one per part, are fewer than backward passes, one per target.

    Only for methods whose scores are sums of a direction times a gradient, and not of probabilities, which are not
    linear in the numbers that forward mode carries.
    """
    if not isinstance(method, DimensionwiseExplainer) or method.aggregate != "sum" or method.output == "prob":
        return False
    return type(method).points is not DimensionwiseExplainer.points and PASSES_PER_PART * parts < targets


@torch.no_grad()
def sum_scores_forward(
    method: Explainer, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor], parts: Tensor
) -> Tensor | None:
    """Return sums [T, B, U] of a method's scores over each part [U, B, L], or None if only backward passes will do.

    Σ_{i in part} ⟨direction_i, ∂f/∂E_i⟩ is the derivative of f along the direction restricted to the part: one
    forward-mode pass per part serves all targets.
    """
    if not isinstance(method, DimensionwiseExplainer):
        return None
    with model.evaluation_mode():
        explained = model.with_output(method.output)
        points = method.points(explained, batch)
        if points is None:
            return None
        total: Tensor | None = None
        try:
            with method.override_derivatives(explained):
                for at, direction in points:
                    slopes = compute_directional_derivatives(explained, batch, at, direction, parts & batch.content)
                    total = slopes if total is None else total + slopes
        except NotImplementedError as error:
            # torch raises this for operations without a forward-mode derivative (grouped products of experts), and
            # offers no other way to ask. The caller then runs backward passes, which give the same scores.
            if NO_FORWARD_DERIVATIVE not in str(error):
                raise
            return None
    assert total is not None
    return torch.stack([explained.task.score(total, target).T for target in targets])


def explain_parts(
    method: Explainer, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor], parts: Tensor
) -> list[TokenScores] | None:
    """Return explanations of one example whose sums over its parts [L] are right; None if backward passes are fewer.

    Each sum is at the first position of its part. Content of no part, −1, is one more part.
    """
    count = int(parts.max()) + 1
    # The image tokens of a unit are not those that its score is summed from.
    if batch.region_of is not None or not is_forward_cheaper(method, len(targets), count):
        return None
    number = torch.where((parts < 0) & batch.content[0], count, parts)
    inside = number == torch.arange(int(number.max()) + 1, device=batch.device)[:, None]
    sums = sum_scores_forward(method, model, batch, targets, inside[:, None])
    if sums is None:
        return None
    scores = sums.new_zeros(len(sums), 1, batch.length)
    scores[:, 0, inside.int().argmax(1)] = sums[:, 0]
    return [TokenScores(each) for each in scores]


class ScoreOfEmbeddings(nn.Module):
    """The target's logit [m·B] of input embeddings [m·B, L, d]: m versions of B examples, version by version."""

    def __init__(self, model: ExplainedModel, batch: Batch, target: Tensor) -> None:
        super().__init__()
        self.model, self.batch, self.explained = model, batch, target

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the target's logit f_c of every version: [m·B]."""
        # Captum stacks copies of the whole batch, so row r belongs to example r mod B.
        rows = torch.arange(len(embeddings), device=embeddings.device) % len(self.batch)
        outputs = self.model(self.batch.select(rows), embeddings)
        return self.model.task.score(outputs.logits, self.explained[rows])
