"""Does an explanation depend on what the model has learned? (Adebayo et al. 2018)

In the cascade, the model's parts lose what they learned one after another, from the answer down to the embeddings, and
each stage's explanations are compared with the trained model's. A method whose explanations stay as they were explains
something other than the model. A model trained on shuffled labels (`exegete train random_labels`) can be the other side
of the comparison too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import nn

from exegete.explainers import Explainer, attribute
from exegete.models import ExplainedModel
from exegete.models.layers.architecture import get_layers
from exegete.reports.attributions import Attribution
from exegete.reports.figures.curves import Curve
from exegete.reports.figures.figure import plot_curves

Floats = NDArray[np.float64]
X_LABEL = "parts of random weights, from the answer down"


@dataclass(frozen=True)
class Cascade:
    """How alike explanations stay: `stages` by what was lost last, `values` [S, E]: Spearman's ρ, NaN where undefined.

    The first stage is the trained model itself.
    """

    stages: tuple[str, ...]
    values: Floats

    @property
    def means(self) -> Floats:
        """[S] Mean over examples."""
        means: Floats = np.nanmean(self.values, 1)
        return means


def randomise_cascade(
    model: ExplainedModel,
    examples: Any,
    method: str | Explainer,
    *,
    absolute: bool = False,
    seed: int = 0,
    **options: Any,
) -> Cascade:
    """Compares a method's explanations of the model with those of copies that lost ever more of what they learned.

    All explain the class that the trained model predicts. Matrices are drawn anew from a normal distribution with their
    own mean and deviation, vectors shuffled.

    Args:
        model: trained; it stays as it is.
        examples: as `exegete.attribute` takes them.
        method: a registry id or an explainer.
        absolute: compare magnitudes.
        seed: of the random weights.
        options: of `exegete.attribute`, as `batch_size`.

    Raises:
        ExegeteError: an architecture whose layers are not known.
    """
    trained = list(attribute(model, examples, method, **options))
    stages, values = ["trained"], [rank_correlations(trained, trained, absolute=absolute)]
    for stage, copy in randomise_stages(model, seed):
        targets = [item.target for item in trained]
        found = attribute(copy, examples, method, targets, **options)
        stages.append(stage)
        values.append(rank_correlations(trained, list(found), absolute=absolute))
    return Cascade(tuple(stages), np.array(values))


def randomise_stages(model: ExplainedModel, seed: int = 0) -> Iterator[tuple[str, ExplainedModel]]:
    """One copy again and again, each time with one more random part: head, last to first layer, embeddings."""
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for stage, weights in _group_weights(copy):
        with torch.no_grad():
            for weight in weights:
                _randomise(weight, generator)
        yield stage, copy


def rank_correlations(one: Sequence[Attribution], other: Sequence[Attribution], *, absolute: bool = False) -> Floats:
    """[E] Spearman's ρ of two models' scores for the same examples, special tokens aside; NaN where one is constant."""
    found = []
    for left, right in zip(one, other, strict=True):
        inside = ~np.asarray(left.special, dtype=bool)
        pair = [np.asarray(item.scores, dtype=np.float64)[inside] for item in (left, right)]
        pair = [np.abs(scores) for scores in pair] if absolute else pair
        known = len(pair[0]) > 1 and all(np.isfinite(scores).all() and np.ptp(scores) > 0 for scores in pair)
        found.append(float(spearmanr(*pair).statistic) if known else np.nan)
    return np.array(found, dtype=np.float64)


def plot_cascades(cascades: Mapping[str, Cascade]) -> Figure:
    """A line for each method: mean similarity by what was lost last, its deviation over examples as a band."""
    curves = []
    for name, each in cascades.items():
        spread = np.nanstd(each.values, 1)
        lost, mean = np.arange(len(each.stages)), each.means
        curves.append(Curve(name, "sanity", lost, mean, mean - spread, mean + spread, X_LABEL, "Spearman's ρ"))
    return plot_curves(curves)


def _group_weights(model: ExplainedModel) -> list[tuple[str, list[nn.Parameter]]]:
    """The model's weights from the answer down."""
    inner = list(dict.fromkeys(get_layers(model.model)))
    owner = {id(weight): number for number, layer in enumerate(inner, 1) for weight in layer.parameters()}
    numbers = [owner.get(id(weight)) for weight in model.model.parameters()]
    first = next(place for place, number in enumerate(numbers) if number is not None)
    groups: dict[int, list[nn.Parameter]] = {}
    for place, (weight, number) in enumerate(zip(model.model.parameters(), numbers, strict=True)):
        outside = 0 if place < first else len(inner) + 1
        groups.setdefault(outside if number is None else number, []).append(weight)
    names = {0: "embeddings", len(inner) + 1: "head"}
    return [(names.get(number, f"layer {number}"), groups[number]) for number in sorted(groups, reverse=True)]


def _randomise(weight: nn.Parameter, generator: torch.Generator) -> None:
    known = weight.detach().double().cpu()
    if known.ndim > 1:
        drawn = torch.randn(known.shape, generator=generator, dtype=torch.float64) * known.std() + known.mean()
    else:
        drawn = known[torch.randperm(len(known), generator=generator)]
    weight.copy_(drawn)
