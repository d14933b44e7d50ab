"""Sums of scores over parts of an input for many targets, by forward-mode differentiation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from expound.explainers.base import DimensionwiseExplainer, Explainer, TokenScores
from expound.models import Batch, ExplainedModel
from expound.models.passes.forward_mode import PASSES_PER_PART, compute_directional_derivatives

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
