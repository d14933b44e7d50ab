"""Plausibility of the scores of each layer, for explainers that have scores by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from datasets import Dataset

from expound.evaluation.compare.judge import include_special_tokens
from expound.explainers import Explainer
from expound.explainers.registry import add_seed, explainer
from expound.metrics import metric
from expound.models import ExplainedModel
from expound.models.batch import require_finite_logits
from expound.models.encoding.encode import make_batches, select_targets
from expound.models.encoding.labels import renumber_labels


@torch.no_grad()
def plausibility_by_layer(
    model: ExplainedModel,
    data: Dataset,
    explainers: Mapping[str, str | Explainer],
    metrics: list[str],
    target: Any,
    seed: int,
    *,
    special_tokens: bool = False,
) -> pd.DataFrame:
    """Return the mean over examples of each metric on rationales: a row per method, metric and layer.

    With `special_tokens`, metrics with a parameter `special_tokens` also see the scores of special tokens.
    """
    rows, found = renumber_labels(model, data), list[pd.DataFrame]()
    judges = {spec: metric(spec) for spec in metrics if metric(spec).card.needs_rationale}
    for indices in make_batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        logits = require_finite_logits(model(batch).logits)
        explained = model.resolve_target(batch, select_targets(target, indices, len(rows)), logits)
        for spec, each in explainers.items():
            method = explainer(add_seed(each, seed), model)
            layers = method.explain(model, batch, explained, special_tokens=True).layers
            if layers is None:
                continue
            for layer, scores in enumerate(layers.unbind(1), 1):
                for name, judge in judges.items():
                    seen = include_special_tokens(batch, judge) if special_tokens else batch
                    values = judge.evaluate(model, seen, scores, explained)[judge.name].cpu().numpy()
                    found.append(pd.DataFrame({"method": spec, "metric": name, "layer": layer, "value": values}))
    columns = ["method", "metric", "layer"]
    every = pd.concat(found) if found else pd.DataFrame(columns=[*columns, "value"])
    return every.groupby(columns, sort=False)["value"].mean().reset_index()
