"""One batch explained by many methods and judged by many metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from exegete.explainers.attribute_examples import make_attributions
from exegete.explainers.base import Explainer, Explanation, find_nonfinite, require_finite
from exegete.metrics import Metric
from exegete.metrics.cost import measure_cost
from exegete.metrics.plausibility import Auc
from exegete.models import Batch, ExplainedModel
from exegete.models.outputs import require_finite_logits
from exegete.reports.attributions import Attribution

BY_LAYER = "AUC by layer"


@dataclass(frozen=True)
class JudgedExamples:
    """A batch's part of a comparison.

    `results`: one row per example and method, one column per metric. `curves`: one row per example, method, metric and
    budget (`x`, a fraction) with the `value` there; as metric `BY_LAYER` also plausibility by layer (`x`, from 1).
    `attributions`: every example by every method.
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    attributions: list[Attribution]


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
    """Explains and judges B examples; special tokens have scores of 0, or with `special_tokens` the methods' own.

    All methods are judged together, so that a perturbed input that several ask for is run once. Scores that are not
    finite are an error; with `allow_nan` their figures are NaN.
    """
    with model.evaluation_mode():
        logits = require_finite_logits(model(batch).logits)
    explained = model.resolve_target(batch, target, logits)
    explanations, costs = _explain_by_methods(model, batch, methods, explained, special_tokens)
    every = batch.select(list(range(len(batch))) * len(methods))
    for method, explanation in zip(methods.values(), explanations, strict=True):
        if not allow_nan:
            require_finite(method, model, explanation.scores, indices)
    scores = torch.cat([explanation.scores for explanation in explanations])
    broken, scores = find_nonfinite(scores), scores.nan_to_num(0.0, 0.0, 0.0)
    targets = torch.cat([explained] * len(methods))
    keys = pd.DataFrame({"example": list(indices) * len(methods), "method": [m for m in methods for _ in indices]})
    with model.cache_perturbed():
        batches = {
            name: include_special_tokens(every, metric) if special_tokens else every for name, metric in metrics.items()
        }
        values = {
            name: set_undefined(broken, _judge_by_metric(model, batches[name], len(batch), scores, targets, metric))
            for name, metric in metrics.items()
        }
        curves = [
            _curve_rows(name, keys, metric.evaluate_budgets(model, batches[name], scores, targets), broken)
            for name, metric in metrics.items()
        ]
    curves += [
        _layer_curve_rows(model, batch, explained, explanation, keys[keys["method"] == method])
        for method, explanation in zip(methods, explanations, strict=True)
    ]
    judged = pd.DataFrame({name: column.cpu().numpy() for name, column in values.items()})
    described = [
        make_attributions(model, explainer, batch, explained, logits, explanation, indices)
        for explainer, explanation in zip(methods.values(), explanations, strict=True)
    ]
    attributions = [item for items in described for item in items]
    facts = pd.DataFrame([_example_facts(item) for item in attributions])
    return JudgedExamples(
        pd.concat([keys, facts, judged, costs], axis=1), pd.concat(curves, ignore_index=True), attributions
    )


def include_special_tokens(batch: Batch, metric: Metric) -> Batch:
    """The batch as a metric sees it whose `specials` are set: special tokens are content that nobody marked."""
    return replace(batch, content=batch.attended) if getattr(metric, "specials", False) else batch


def _judge_by_metric(
    model: ExplainedModel, every: Batch, size: int, scores: Tensor, targets: Tensor, metric: Metric
) -> Tensor:
    """A metric's values for all methods, in one call unless it compares the examples of a batch with each other."""
    if not metric.compares_examples:
        return metric.evaluate(model, every, scores, targets)[metric.name]
    rows = torch.arange(len(every), device=every.device).split(size)
    return torch.cat([metric.evaluate(model, every.select(r), scores[r], targets[r])[metric.name] for r in rows])


def _explain_by_methods(
    model: ExplainedModel, batch: Batch, methods: Mapping[str, Explainer], target: Tensor, special_tokens: bool
) -> tuple[list[Explanation], pd.DataFrame]:
    """Each method's explanation, and its cost: seconds an example, and the batch's peak memory in MiB."""
    explanations, costs = [], []
    for explainer in methods.values():
        with measure_cost(model.device) as cost:
            found = explainer.explain(model, batch, target, special_tokens=special_tokens)
        explanations.append(replace(found, scores=found.scores.masked_fill(~batch.attended, 0.0)))
        costs += [{"seconds": cost.seconds / len(batch), "peak_memory": cost.peak_memory}] * len(batch)
    return explanations, pd.DataFrame(costs)


def set_undefined(rows: Sequence[int], values: Tensor) -> Tensor:
    """The values [B], those of some rows NaN."""
    gone = torch.tensor(rows, dtype=torch.long, device=values.device)
    return values.index_fill(0, gone, torch.nan) if rows else values


def _curve_rows(
    metric: str, keys: pd.DataFrame, points: Mapping[float, Tensor], broken: Sequence[int] = ()
) -> pd.DataFrame:
    """One row per example, method and budget."""
    sample_examples = points.items() if len(points) > 1 else ()
    parts = [
        keys.assign(metric=metric, x=budget, value=set_undefined(broken, values).cpu().numpy())
        for budget, values in sample_examples
    ]
    return pd.concat(parts) if parts else keys.iloc[:0].assign(metric="", x=0.0, value=0.0)


def _layer_curve_rows(
    model: ExplainedModel, batch: Batch, target: Tensor, explanation: Explanation, keys: pd.DataFrame
) -> pd.DataFrame:
    """Plausibility of every layer's scores, for methods that have some, where people marked evidence."""
    layers = () if explanation.layers is None or batch.rationale_mask is None else explanation.layers.unbind(1)
    auc = Auc() if batch.exchanges is None else Auc(level="source", absolute=False)
    values = {
        float(number): auc.evaluate(model, batch, scores, target)[auc.name] for number, scores in enumerate(layers, 1)
    }
    return _curve_rows(BY_LAYER, keys, values)


def _example_facts(item: Attribution) -> dict[str, Any]:
    """The columns beside the metrics in a row of results: target, prediction, probability, tokens, truncation."""
    return {
        "target": item.target_label,
        "prediction": item.prediction_label,
        "probability": item.probability,
        "tokens": len(item.tokens),
        "truncated": item.truncated,
    }
