"""What guidance did to a model: guided and other attributions against rationales, agreement, and what foretells OOD.

All analyses of explanation regularisation (Ferreira et al. 2024, §5 and appendices D to F), as functions that give
plain tables. Attributions are those of every position, special tokens included as unmarked ones; signed ones count by
magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from exegete.explainers import Explainer, explainer
from exegete.explainers.attention import AttentionLast, AttentionRollout, from_readout
from exegete.explainers.attribute import batches
from exegete.metrics import Metric, metric
from exegete.metrics.agreement import kendall_tau
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.labels import in_model_labels
from exegete.recipes import RECIPES
from exegete.recipes.guidance import USUAL
from exegete.training.start import Source

TECHNIQUES = ("attention_last", "attention_rollout", "input_x_gradient", "alti", "decompx_linear")
PLAUSIBILITY = ("auc", "average_precision", "recall_at_k")
WEIGHTS = (0.0, 0.5, 1.0, 5.0, 10.0, 100.0)
OVERALL = -1

Scores = Mapping[str, Sequence[NDArray[np.float32]]]
"""Magnitudes of each example's positions by technique; the same examples in the same order for each."""


@dataclass(frozen=True)
class Explained:
    """What techniques say of a model on a dataset.

    `plausibility`: one row per example, technique and layer (`OVERALL`: the technique's own scores), one column per
    metric. `scores`: see `Scores`.
    """

    plausibility: pd.DataFrame
    scores: Scores


@torch.no_grad()
def explained(
    model: ExplainedModel,
    data: Dataset,
    techniques: Sequence[str | Explainer] = TECHNIQUES,
    metrics: Sequence[str] = PLAUSIBILITY,
    *,
    target: Any = "label",
    layers: bool = False,
    batch_size: int | None = None,
) -> Explained:
    """Explains every example by every technique and compares with its rationale.

    Args:
        model: what is explained.
        data: rows with rationales and, for the gold target, labels.
        techniques: ids or explainers.
        metrics: ids of plausibility metrics.
        target: what is explained; the paper's is the gold label.
        layers: judge every layer of the techniques that have some, too.
        batch_size: examples a batch; default: as many as fit a token budget.
    """
    rows, judges = in_model_labels(model, data), _judges(metrics)
    parts: list[pd.DataFrame] = []
    found: dict[str, dict[int, NDArray[np.float32]]] = {}
    for indices in batches(model, rows, batch_size):
        batch = model.encode([rows[index] for index in indices])
        for method in map(explainer, techniques):
            for layer, scores in _levels(model, batch, method, target, layers):
                parts.append(
                    _judged(model, batch, scores, judges).assign(example=indices, method=method.name, layer=layer)
                )
                if layer == OVERALL:
                    kept = (row[real].float().cpu().numpy() for row, real in zip(scores, batch.attended, strict=True))
                    found.setdefault(method.name, {}).update(zip(indices, kept, strict=True))
    frame = pd.concat(parts, ignore_index=True).sort_values(["method", "layer", "example"], ignore_index=True)
    return Explained(frame, {name: [each[index] for index in sorted(each)] for name, each in found.items()})


def layer_scores(model: ExplainedModel, batch: Batch, method: Explainer, target: Any = "label") -> Tensor | None:
    """[B, N, L] Scores layer by layer: attention of each layer, rollout up to each, `Explanation.layers` of others."""
    if type(method) is AttentionLast:
        return torch.stack([_read(model, batch, layer.mean(1), target) for layer in _attentions(model, batch)], 1)
    if isinstance(method, AttentionRollout):
        return _rolled(model, batch, target)
    return method.everywhere(model, batch, target).layers


def across(approaches: Mapping[str, Sequence[Scores]], baseline: str = "baseline", *, seed: int = 42) -> pd.DataFrame:
    """How far the same technique agrees with itself between models trained in different ways (τ-b).

    One row per approach, technique and example: a model of the baseline against one of the approach, drawn with
    different seeds. The baseline against itself is the floor: what seeds alone change.

    Args:
        approaches: the scores of the model of each seed, by approach; at least two seeds of the baseline.
        baseline: the approach that the others are compared with.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for name, models in approaches.items():
        for technique in models[0]:
            for example in range(len(models[0][technique])):
                one, other = _different(generator, len(approaches[baseline]), len(models))
                pair = approaches[baseline][one][technique][example], models[other][technique][example]
                rows.append((name, technique, example, kendall_tau(*pair)))
    return pd.DataFrame(rows, columns=["approach", "method", "example", "tau"])


def within(approaches: Mapping[str, Sequence[Scores]]) -> pd.DataFrame:
    """How far two techniques agree on the same model: one row per approach, seed, pair and example."""
    rows = [
        (name, seed, first, second, example, kendall_tau(one, other))
        for name, models in approaches.items()
        for seed, scores in enumerate(models)
        for first, second in combinations(scores, 2)
        for example, (one, other) in enumerate(zip(scores[first], scores[second], strict=True))
    ]
    return pd.DataFrame(rows, columns=["approach", "seed", "method", "other", "example", "tau"])


def weight_sweep(
    model: Source,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    *,
    guide: str,
    weights: Sequence[float] = WEIGHTS,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Dev cross-entropy and explanation loss as λ grows, with the baseline's values for the rest: a row a run.

    Args:
        model: see `Recipe.train`, as `train`, `dev`, `arguments` and further options.
        train: rows with rationales.
        dev: the same columns.
        output_dir: holds a folder for each run; finished ones are not repeated.
        guide: what is guided.
        weights: λ.
        seeds: of the runs.
        arguments: of transformers' Trainer.
        options: see `Recipe.train`.
    """
    usual = {"learning_rate": USUAL.joint_rate, "num_train_epochs": USUAL.joint_epochs, **(arguments or {})}
    rows = []
    for weight in weights:
        for seed in seeds:
            folder = Path(output_dir) / f"{guide}-{weight:g}-{seed}"
            recipe = RECIPES["er_joint"](guide, weight)
            figures = recipe.train(model, train, dev, folder, arguments=usual, seed=seed, **options).metrics
            rows.append((guide, weight, seed, figures["cross_entropy"], figures["explanation"]))
    return pd.DataFrame(rows, columns=["guide", "weight", "seed", "cross_entropy", "explanation"])


def foretells(models: pd.DataFrame, outcome: str, predictors: Sequence[str]) -> pd.DataFrame:
    """Spearman's ρ of each predictor with the outcome over models, with its p-value and the models it is of.

    Args:
        models: a row a trained model.
        outcome: the column that is to be foretold, as out-of-domain F1.
        predictors: columns known before, as in-domain F1 or plausibility.
    """
    rows = []
    for name in predictors:
        known = models[[name, outcome]].dropna()
        varied = len(known) > 2 and known[name].nunique() > 1 and known[outcome].nunique() > 1
        found = spearmanr(known[name], known[outcome]) if varied else None
        rows.append((name, *((float("nan"),) * 2 if found is None else (found.statistic, found.pvalue)), len(known)))
    return pd.DataFrame(rows, columns=["predictor", "rho", "p", "models"])


def _judges(metrics: Sequence[str]) -> list[Metric]:
    return [metric(name, level="token", absolute=True) for name in metrics]


def _judged(model: ExplainedModel, batch: Batch, scores: Tensor, judges: Sequence[Metric]) -> pd.DataFrame:
    """Every position can be ranked: special tokens are content for the occasion."""
    whole = replace(batch, content=batch.attended)
    target = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
    values = [judge.judge(model, whole, scores, target) for judge in judges]
    return pd.DataFrame({name: value.cpu().numpy() for each in values for name, value in each.items()})


def _levels(
    model: ExplainedModel, batch: Batch, method: Explainer, target: Any, layers: bool
) -> Iterator[tuple[int, Tensor]]:
    """The technique's own magnitudes, and those of its layers where they are wanted and there are some."""
    yield OVERALL, method.everywhere(model, batch, target).scores.abs()
    by_layer = layer_scores(model, batch, method, target) if layers else None
    if by_layer is not None:
        yield from enumerate(by_layer.abs().unbind(1))


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


def _different(generator: np.random.Generator, first: int, second: int) -> tuple[int, int]:
    """A seed of each, not the same one."""
    one = int(generator.integers(first))
    others = [index for index in range(second) if index != one]
    return one, int(generator.choice(others)) if others else one
