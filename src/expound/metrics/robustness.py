"""Robustness over models: do models that differ only by chance have similar explanations?

The different-initialization test (DIT) compares models of one architecture, trained on the same data in the same order
from different initial weights of the head. The untrained-model test (UIT) compares them with a model whose head was
never trained: there, similarity is a bad sign (Zafar et al. 2021; REGEX, Tables 3 and 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from expound.errors import ExpoundError
from expound.explainers import Explainer, attribute
from expound.metrics.agreement import jaccard
from expound.models import ExplainedModel
from expound.reports.explanations import Explanation

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ModelSimilarity:
    """Similarity of M models' attributions of the same E examples: `values` [M, M, E], NaN if undefined."""

    names: Sequence[str]
    values: Floats

    @property
    def matrix(self) -> pd.DataFrame:
        """The means over examples [M, M], as the papers print them."""
        return pd.DataFrame(np.nanmean(self.values, 2), index=list(self.names), columns=list(self.names))


def model_consistency(
    models: Mapping[str, ExplainedModel | Callable[[], ExplainedModel]],
    examples: Any,
    method: str | Explainer = "scaled_attention",
    target: Any = "predicted",
    *,
    fraction: float = 0.25,
    **options: Any,
) -> ModelSimilarity:
    """Return the Jaccard similarity of the top tokens of several models' attributions.

    Args:
        models: models by name, or functions that load them, so that only one is in memory at a time.
        examples: as `expound.attribute` takes them.
        method: a registry id or an explainer; the paper uses scaled attention.
        target: what each model explains: its own prediction, or "label" so that all explain the same class.
        fraction: the share of an example's content tokens that counts as its top, rounded up.
        options: options of `expound.attribute`, as `batch_size`.

    Raises:
        ExpoundError: the models have different tokens.
    """
    attributions = []
    for source in models.values():
        model = source if isinstance(source, ExplainedModel) else source()
        attributions.append(list(attribute(model, examples, method, target, **options)))
    return ModelSimilarity(tuple(models), jaccard_matrix(attributions, fraction))


def jaccard_matrix(attributions: Sequence[Sequence[Explanation]], fraction: float = 0.25) -> Floats:
    """Return the similarities [M, M, E] of M models' attributions of the same E examples, without special tokens.

    Raises:
        ExpoundError: the models explain different examples, or have different tokens.
    """
    if not attributions or any(len(items) != len(attributions[0]) for items in attributions):
        raise ExpoundError("expected attributions of the same examples by every model")
    examples = []
    for items in zip(*attributions, strict=True):
        tokens = {tuple(token.text for token in item.tokens) for item in items}
        if len(tokens) > 1:
            raise ExpoundError("the models see different tokens: compare models with one tokenizer")
        scores = [item.content_scores for item in items]
        similarities = [jaccard(one, other, fraction) for one, other in product(scores, scores)]
        examples.append(np.reshape(similarities, (len(scores), len(scores))))
    return np.moveaxis(np.asarray(examples, dtype=np.float64), 0, -1)
