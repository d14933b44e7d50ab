"""Sums of scores over parts of an input, for many targets: derivatives carried forward from the parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exegete.explainers.base import DimensionwiseExplainer, Explainer
from exegete.models import Batch, ExplainedModel
from exegete.models.passes.forward_mode import PASSES_PER_PART, compute_directional_derivatives

NO_FORWARD_DERIVATIVE = "forward AD"
"""Words of torch's error for an operation whose derivative it cannot carry forward."""


def is_forward_cheaper(method: Explainer, targets: int, parts: int) -> bool:
    """Whether passes forward from so many parts are fewer than passes back from so many targets, and give the same.

    Scores have to be sums of a direction times the gradient of what is no probability.
    """
    if not isinstance(method, DimensionwiseExplainer) or method.aggregate != "sum" or method.output == "prob":
        return False
    return type(method).points is not DimensionwiseExplainer.points and PASSES_PER_PART * parts < targets


@torch.no_grad()
def sum_scores_forward(
    method: Explainer, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor], parts: Tensor
) -> Tensor | None:
    """[T, B, U] Sums of a method's scores over each of the parts [U, B, L]; None where it has to go backward.

    A model with operations that carry no derivative forward (experts' grouped products) goes backward: torch tells of
    them by the error alone.
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
            if NO_FORWARD_DERIVATIVE not in str(error):
                raise
            return None
    assert total is not None
    return torch.stack([explained.task.score(total, target).T for target in targets])
