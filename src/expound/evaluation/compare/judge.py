"""One batch explained by many methods and judged by many metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from expound.explainers.attribute_examples import ExplainedBatch, describe_batch, explain_batch
from expound.explainers.base import Explainer, TokenScores, find_nonfinite, require_finite
from expound.metrics import Metric
from expound.metrics.cost import measure_cost
from expound.metrics.plausibility import RationaleAuc
from expound.models import Batch, ExplainedModel
from expound.models.batch import require_finite_logits
from expound.reports.explanations import Explanation

BY_LAYER = "AUC by layer"


@dataclass(frozen=True)
class JudgedExamples:
    """The results of some examples of a comparison.

    Attributes:
        results: one row per example and method, one column per metric.
        curves: one row per example, method, metric and budget (`x`, a fraction), with the `value` there; the metric
            `BY_LAYER` is plausibility by layer (`x`, from 1).
        attributions: of every example by every method.
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    attributions: list[Explanation]


@torch.no_grad()
def judge(
    model: ExplainedModel,
    batch: Batch,
    indices: Sequence[int],
    methods: Mapping[str, Explainer],
    metrics: Mapping[str, Metric],
    target: Any = "predicted",
    *,
    special_tokens: bool = False,
    allow_nan: bool = False,
) -> JudgedExamples:
    """Explain a batch of B examples by all methods, and judge the explanations.

    Args:
        model: the model to explain.
        batch: the examples.
        indices: [B] their rows in the data.
        methods: explainers by name.
        metrics: metrics by column.
        target: see `expound.attribute`.
        special_tokens: keep the scores of special tokens instead of setting them to 0.
        allow_nan: set metrics of scores that are not finite to NaN.

    Raises:
        ExpoundError: scores that are not finite, without `allow_nan`.
    """
    with model.evaluation_mode():
        logits = require_finite_logits(model(batch).logits)
    targets, costs = model.resolve_target(batch, target, logits), []
    explained = list[ExplainedBatch]()
    for method in methods.values():
        with measure_cost(model.device) as cost:
            explained.append(explain_batch(model, method, batch, [targets], logits, special_tokens=special_tokens))
        costs += [{"seconds": cost.seconds / len(batch), "peak_memory": cost.peak_memory}] * len(batch)
        if not allow_nan:
            require_finite(method, model, explained[-1].scores[0].scores.masked_fill(~batch.attended, 0.0), indices)
    # All methods are judged in one batch of M·B rows: a perturbed input that several methods need is run once.
    repeated = batch.select(list(range(len(batch))) * len(methods))
    repeated_targets = torch.cat([targets] * len(methods))
    scores = torch.cat([each.scores[0].scores.masked_fill(~batch.attended, 0.0) for each in explained])
    broken, scores = find_nonfinite(scores), scores.nan_to_num(0.0, 0.0, 0.0)
    names: list[str] = []
    for name in methods:
        names += [name] * len(indices)
    keys = pd.DataFrame({"example": list(indices) * len(methods), "method": names})
    values, curves = dict[str, Any](), []
    with model.cache_perturbed():
        for name, metric in metrics.items():
            judged = include_special_tokens(repeated, metric) if special_tokens else repeated
            value = _judge_by_metric(model, judged, len(batch), scores, repeated_targets, metric)
            values[name] = set_undefined(broken, value).cpu().numpy()
            points = metric.evaluate_fractions(model, judged, scores, repeated_targets)
            curves.append(_curve_rows(name, keys, points, broken))
    attributions = []
    for (name, method), each in zip(methods.items(), explained, strict=True):
        curves.append(_layer_curve_rows(model, batch, targets, each.scores[0], keys[keys["method"] == name]))
        attributions += describe_batch(model, method, batch, each, indices)
    facts = pd.DataFrame([_example_facts(item) for item in attributions])
    results = pd.concat([keys, facts, pd.DataFrame(values), pd.DataFrame(costs)], axis=1)
    return JudgedExamples(results, pd.concat(curves, ignore_index=True), attributions)


def include_special_tokens(batch: Batch, metric: Metric) -> Batch:
    """Return the batch that a metric with `special_tokens` judges: special tokens are content without rationale."""
    if not getattr(metric, "special_tokens", False):
        return batch
    return replace(batch, content=batch.attended)


def _judge_by_metric(
    model: ExplainedModel, batch: Batch, size: int, scores: Tensor, targets: Tensor, metric: Metric
) -> Tensor:
    """Return a metric's values for the rows of all methods, `size` rows per method."""
    if not metric.compares_examples:
        return metric.evaluate(model, batch, scores, targets)[metric.name]
    # Such a metric must not compare an example explained by one method with itself explained by another.
    values = []
    for rows in torch.arange(len(batch), device=batch.device).split(size):
        values.append(metric.evaluate(model, batch.select(rows), scores[rows], targets[rows])[metric.name])
    return torch.cat(values)


def set_undefined(rows: Sequence[int], values: Tensor) -> Tensor:
    """Return the values [B] with NaN in some rows."""
    index = torch.tensor(rows, dtype=torch.long, device=values.device)
    return values.index_fill(0, index, torch.nan) if rows else values


def _curve_rows(
    metric: str, keys: pd.DataFrame, points: Mapping[float, Tensor], broken: Sequence[int] = ()
) -> pd.DataFrame:
    """Return one row per example, method and budget; empty for a single budget."""
    if len(points) < 2:
        return keys.iloc[:0].assign(metric="", x=0.0, value=0.0)
    parts = []
    for budget, values in points.items():
        parts.append(keys.assign(metric=metric, x=budget, value=set_undefined(broken, values).cpu().numpy()))
    return pd.concat(parts)


def _layer_curve_rows(
    model: ExplainedModel, batch: Batch, target: Tensor, explanation: TokenScores, keys: pd.DataFrame
) -> pd.DataFrame:
    """Return the plausibility of every layer's scores; empty without scores per layer or rationales."""
    auc = RationaleAuc() if batch.exchanges is None else RationaleAuc(unit="source", absolute=False)
    points = dict[float, Tensor]()
    if explanation.layers is not None and batch.rationale_mask is not None:
        for number, scores in enumerate(explanation.layers.unbind(1), 1):
            points[float(number)] = auc.evaluate(model, batch, scores, target)[auc.name]
    return _curve_rows(BY_LAYER, keys, points)


def _example_facts(item: Explanation) -> dict[str, Any]:
    return {
        "target": item.target.text,
        "prediction": item.prediction.text if item.prediction else "",
        "probability": item.target.probability,
        "tokens": len(item.tokens),
        "truncated": item.truncated,
    }
