"""Sanity check by model randomization: does an explanation depend on what the model has learned? (Adebayo et al. 2018)

The parts of a copy of the model are randomized one after another, from the head down to the embeddings, and the
explanations at each stage are compared with those of the trained model. A method whose explanations stay the same does
not explain the model. A model trained on shuffled labels (`expound train random_labels`) can be compared as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import nn

from expound.explainers import Explainer, attribute
from expound.models import ExplainedModel
from expound.models.layers.architecture import get_layers
from expound.reports.explanations import Explanation

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cascade:
    """Similarity of explanations during cascading randomization.

    `stages`: the part that each stage randomizes; the first stage is the trained model itself. `values` [S, E]:
    Spearman's ρ with the trained model's explanation of each example, NaN if undefined.
    """

    stages: tuple[str, ...]
    values: Floats

    @property
    def means(self) -> Floats:
        """The mean over examples at each stage [S]."""
        means: Floats = np.nanmean(self.values, 1)
        return means


def randomize_cascade(
    model: ExplainedModel,
    examples: Any,
    method: str | Explainer,
    *,
    absolute: bool = False,
    seed: int = 0,
    **options: Any,
) -> Cascade:
    """Compare a method's explanations of the model with its explanations of more and more randomized copies.

    All explanations are of the class that the trained model predicts. Matrices are drawn from a normal distribution
    with their own mean and standard deviation; vectors are shuffled.

    Args:
        model: the trained model; it is not changed.
        examples: as `expound.attribute` takes them.
        method: a registry id or an explainer.
        absolute: compare magnitudes of scores.
        seed: determines the random weights.
        options: options of `expound.attribute`, as `batch_size`.

    Raises:
        ExpoundError: an architecture whose layers are not known.
    """
    trained = list(attribute(model, examples, method, **options))
    # The randomized copies predict other classes; explaining those would compare explanations of different answers.
    targets = [item.target.value for item in trained]
    stages, values = ["trained"], [rank_correlations(trained, trained, absolute=absolute)]
    for stage, copy in randomize_stages(model, seed):
        explanations = list(attribute(copy, examples, method, targets, **options))
        stages.append(stage)
        values.append(rank_correlations(trained, explanations, absolute=absolute))
    return Cascade(tuple(stages), np.array(values))


def randomize_stages(model: ExplainedModel, seed: int = 0) -> Iterator[tuple[str, ExplainedModel]]:
    """Yield one copy of the model repeatedly, each time with one more random part: head, layers from last, embeddings.

    All stages are the same object, so that only one copy is in memory.
    """
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for stage, weights in _group_weights(copy):
        with torch.no_grad():
            for weight in weights:
                _randomize(weight, generator)
        yield stage, copy


def rank_correlations(one: Sequence[Explanation], other: Sequence[Explanation], *, absolute: bool = False) -> Floats:
    """Return Spearman's ρ of two models' scores for the same E examples, without special tokens: [E].

    NaN if the scores of one model are constant or not finite, or for fewer than two tokens.
    """
    values = []
    for left, right in zip(one, other, strict=True):
        pair = np.array([left.content_scores, right.content_scores], dtype=np.float64)
        if absolute:
            pair = np.abs(pair)
        rho = np.nan
        if pair.shape[1] > 1 and np.isfinite(pair).all() and (np.ptp(pair, axis=1) > 0).all():
            rho = float(spearmanr(*pair).statistic)
        values.append(rho)
    return np.array(values, dtype=np.float64)


def _group_weights(model: ExplainedModel) -> list[tuple[str, list[nn.Parameter]]]:
    """Return the model's weights by part, from the head down."""
    # ALBERT runs one layer several times: its weights are randomized once.
    distinct_layers = list(dict.fromkeys(get_layers(model.model)))
    layer_of = {}
    for depth, layer in enumerate(distinct_layers, 1):
        for weight in layer.parameters():
            layer_of[id(weight)] = depth
    head = len(distinct_layers) + 1
    groups: dict[int, list[nn.Parameter]] = {}
    seen_layer = False
    for weight in model.model.parameters():
        number = layer_of.get(id(weight))
        seen_layer = seen_layer or number is not None
        if number is None:
            # Modules register in the order of the forward pass: weights before the first layer are embeddings.
            number = head if seen_layer else 0
        groups.setdefault(number, []).append(weight)
    names = {0: "embeddings", head: "head"}
    return [(names.get(number, f"layer {number}"), groups[number]) for number in sorted(groups, reverse=True)]


def _randomize(weight: nn.Parameter, generator: torch.Generator) -> None:
    # On the CPU in float64: the drawn numbers are then the same on every device and in every precision.
    trained = weight.detach().double().cpu()
    if trained.ndim > 1:
        noise = torch.randn(trained.shape, generator=generator, dtype=torch.float64)
        random = noise * trained.std() + trained.mean()
    else:
        # Gains of layer norms are near 1 and biases near 0: noise of their own spread keeps neither.
        random = trained[torch.randperm(len(trained), generator=generator)]
    weight.copy_(random)
