"""Scores layer by layer, of attention and rollout too, and how plausible they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from torch import Tensor

from exegete.explainers import Explainer
from exegete.explainers.attention import AttentionLast, AttentionRollout, from_readout
from exegete.explainers.attribute_examples import batches, targets_of
from exegete.explainers.registry import seeded
from exegete.metrics import metric
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.labels import in_model_labels
from exegete.models.outputs import finite
from exegete.studies.compare.judge import looked_at


@torch.no_grad()
def by_layer(
    model: ExplainedModel,
    data: Dataset,
    explainers: Mapping[str, str | Explainer],
    metrics: list[str],
    target: Any,
    seed: int,
    *,
    special_tokens: bool = False,
) -> pd.DataFrame:
    """The mean over examples of every metric on rationales, for each layer's scores: method, metric, layer, value.

    With `special_tokens`, metrics with `specials` see what special tokens are given.
    """
    rows, found = in_model_labels(model, data), list[pd.DataFrame]()
    judges = {spec: metric(spec) for spec in metrics if metric(spec).card.needs_rationale}
    for indices in batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        explained = model.target(batch, targets_of(target, indices, len(rows)), finite(model(batch).logits))
        for spec, each in explainers.items():
            layers = layer_scores(model, batch, seeded(each, seed), explained)
            for layer, scores in enumerate(() if layers is None else layers.unbind(1), 1):
                for name, judge in judges.items():
                    seen = looked_at(batch, judge) if special_tokens else batch
                    values = judge.judge(model, seen, scores, explained)[judge.name].cpu().numpy()
                    found.append(pd.DataFrame({"method": spec, "metric": name, "layer": layer, "value": values}))
    columns = ["method", "metric", "layer"]
    every = pd.concat(found) if found else pd.DataFrame(columns=[*columns, "value"])
    return every.groupby(columns, sort=False)["value"].mean().reset_index()


def layer_scores(model: ExplainedModel, batch: Batch, method: Explainer, target: Any = "label") -> Tensor | None:
    """[B, N, L] Scores layer by layer: attention of each layer, rollout up to each, `Explanation.layers` of others."""
    if type(method) is AttentionLast:
        return torch.stack([_read(model, batch, layer.mean(1), target) for layer in _attentions(model, batch)], 1)
    if isinstance(method, AttentionRollout):
        return _rolled(model, batch, target)
    return method.explain_all_positions(model, batch, target).layers


def _attentions(model: ExplainedModel, batch: Batch) -> tuple[Tensor, ...]:
    with model.evaluating():
        attentions: tuple[Tensor, ...] = model(batch, capture=Capture(attentions=True)).attentions
    return attentions


def _read(model: ExplainedModel, batch: Batch, matrix: Tensor, target: Any) -> Tensor:
    return from_readout(model, batch, matrix, model.target(batch, target))


def _rolled(model: ExplainedModel, batch: Batch, target: Any) -> Tensor:
    """The readout's row of A'_l ··· A'_1 for every l."""
    attentions = _attentions(model, batch)
    identity = torch.eye(batch.length, device=batch.device)
    rolled, rows = identity.expand(len(batch), -1, -1), []
    for layer in attentions:
        mixture = layer.float().mean(1) + identity
        rolled = mixture / mixture.sum(-1, keepdim=True) @ rolled
        rows.append(_read(model, batch, rolled, target))
    return torch.stack(rows, 1)
