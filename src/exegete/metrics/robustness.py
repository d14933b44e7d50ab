"""Do models that differ in nothing but chance explain themselves alike?

The different-initialisation test (DIT) compares models of one architecture, trained on the same data in the same order
from different initial weights of the head. The untrained-model test (UIT) compares them with one whose head was never
trained: there, similarity is a bad sign (Zafar et al. 2021; REGEX, Tables 3 and 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from exegete.errors import ExegeteError
from exegete.explainers import Explainer, attribute
from exegete.metrics.agreement import jaccard
from exegete.models import ExplainedModel
from exegete.reports.attributions import Attribution

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ModelSimilarity:
    """How alike M models' attributions of the same E examples are: `values` [M, M, E], NaN where undefined."""

    names: Sequence[str]
    values: Floats

    @property
    def matrix(self) -> pd.DataFrame:
        """[M, M] means over examples, as the papers print them."""
        return pd.DataFrame(np.nanmean(self.values, 2), index=list(self.names), columns=list(self.names))

    def mean_over_pairs(self, one: Sequence[str], other: Sequence[str] | None = None) -> Floats:
        """Each example's mean over the pairs of different models, both of `one` or the second of `other`: [E].

        Over trained models it is their DIT; of trained models with an untrained one their UIT.

        Raises:
            ExegeteError: a name that there is not, or no two different models.
        """
        at = {name: place for place, name in enumerate(self.names)}
        wrong = next((name for name in (*one, *(other or ())) if name not in at), None)
        if wrong is not None:
            raise ExegeteError(f"there is no model {wrong!r}, but: {', '.join(self.names)}")
        pairs = {tuple(sorted((at[a], at[b]))) for a in one for b in other or one if a != b}
        if not pairs:
            raise ExegeteError("expected at least two different models to compare")
        means: Floats = np.nanmean([self.values[pair] for pair in sorted(pairs)], 0)
        return means


def model_consistency(
    models: Mapping[str, ExplainedModel | Callable[[], ExplainedModel]],
    examples: Any,
    method: str | Explainer = "scaled_attention",
    target: Any = "predicted",
    *,
    fraction: float = 0.25,
    **options: Any,
) -> ModelSimilarity:
    """The Jaccard similarity of what several models' attributions put first.

    Args:
        models: by name; a function that loads one, so that they need not be in memory together.
        examples: as `exegete.attribute` takes them.
        method: any explainer; the paper has scaled attention.
        target: of each model: its own prediction, or "label" so that all explain the same.
        fraction: the share of an example's content tokens that counts as its top, rounded up.
        options: of `exegete.attribute`, as `batch_size`.

    Raises:
        ExegeteError: the models see different tokens.
    """
    found = []
    for source in models.values():
        model = source if isinstance(source, ExplainedModel) else source()
        found.append(list(attribute(model, examples, method, target, **options)))
    return ModelSimilarity(tuple(models), jaccard_matrix(found, fraction))


def jaccard_matrix(attributions: Sequence[Sequence[Attribution]], fraction: float = 0.25) -> Floats:
    """[M, M, E] from M models' attributions of the same E examples; special tokens do not count.

    Raises:
        ExegeteError: other examples, or other tokens, in one of them.
    """
    if not attributions or any(len(items) != len(attributions[0]) for items in attributions):
        raise ExegeteError("expected attributions of the same examples by every model")
    columns = []
    for items in zip(*attributions, strict=True):
        if any(item.tokens != items[0].tokens for item in items):
            raise ExegeteError("the models see different tokens: compare models with one tokenizer")
        inside = [~np.asarray(item.special, dtype=bool) for item in items]
        scores = [np.asarray(item.scores)[where] for item, where in zip(items, inside, strict=True)]
        columns.append([[jaccard(one, other, fraction) for other in scores] for one in scores])
    return np.moveaxis(np.asarray(columns, dtype=np.float64), 0, -1)
