"""Protocols that look at a model's words: attacks, sanity of explanations, plausibility over a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exegete.errors import ExegeteError

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from exegete.models import ExplainedModel


def measure_attack(
    model: ExplainedModel, data: Dataset, *, budget: int | None = None, choices: int = 5, seed: int = 0
) -> dict[str, float]:
    """How often swaps of contractions, names, places and numbers change a right answer (see `metrics.attack`).

    Args:
        model: a classifier.
        data: texts with labels.
        budget: texts to try for an example.
        choices: words to try for each stretch.
        seed: of the words.
    """
    from exegete.metrics.attack import attack
    from exegete.models.encoding.labels import renumber_labels

    report = attack(model, renumber_labels(model, data), budget=budget, choices=choices, seed=seed)
    return {f"attack_{name}": value for name, value in report.figures.items()}


def measure_sanity(
    model: ExplainedModel,
    data: Dataset,
    *,
    explainer: str = "integrated_gradients",
    random_labels: str = "",
    absolute: bool = False,
    seed: int = 0,
) -> dict[str, float]:
    """How alike explanations stay when the model loses what it learned: Spearman's ρ, lower is better (Adebayo).

    Args:
        model: trained.
        data: what is explained.
        explainer: any method.
        random_labels: folder of a model trained on shuffled labels, to compare with as well.
        absolute: compare magnitudes.
        seed: of the random weights.
    """
    import numpy as np

    from exegete.explainers import attribute
    from exegete.metrics.sanity import randomise_cascade, rank_correlations
    from exegete.models import load

    rows = list(data)
    _, *stages = randomise_cascade(model, rows, explainer, absolute=absolute, seed=seed).means
    found = {"sanity_head": stages[0], "sanity_half": stages[len(stages) // 2], "sanity_all": stages[-1]}
    if random_labels:
        known = list(attribute(model, rows, explainer))
        others = attribute(load(random_labels, device=model.device), rows, explainer, [item.target for item in known])
        found["sanity_labels"] = np.nanmean(rank_correlations(known, list(others), absolute=absolute))
    return {name: float(value) for name, value in found.items()}


def measure_best_attention(
    model: ExplainedModel, data: Dataset, *, metric: str = "auc?absolute=false"
) -> dict[str, float]:
    """How plausible the attention of the layer, and of the head, is that people's rationales of this data choose.

    Args:
        model: the one whose attention is looked at.
        data: texts with rationales; the best is chosen on what it is judged on.
        metric: of plausibility.
    """
    from exegete.metrics import metric as made
    from exegete.studies.protocols.best_attention import score_best_attention

    layer, head = score_best_attention(model, data, made(metric))
    return {"best_layer": layer, "best_head": head}


def measure_micro_f1(
    model: ExplainedModel, data: Dataset, *, explainers: Sequence[str], k: float | None = None, seed: int
) -> pd.DataFrame:
    """F1 of the first tokens of all texts together against the marked ones: a row a method.

    Args:
        model: what is explained, in its predictions.
        data: texts with rationales; those that nobody looked at do not count.
        explainers: methods.
        k: how many tokens of a text, as in `token_f1`.
        seed: of the run.
    """
    import pandas as pd
    import torch

    from exegete.explainers.attribute_examples import make_batches
    from exegete.explainers.registry import make_seeded
    from exegete.metrics.plausibility import TokenF1
    from exegete.models.encoding.labels import renumber_labels

    metric = TokenF1(level="token", k=k)
    rows = [row for row in renumber_labels(model, data) if row["rationale"] is not None]
    if not rows:
        raise ExegeteError("micro_f1 needs texts with rationales, and there are none")
    counts = dict.fromkeys(explainers, (0.0, 0.0))
    for indices in make_batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        gold = torch.zeros_like(batch.content) if batch.rationale_mask is None else batch.rationale_mask
        for spec, (hits, size) in counts.items():
            scores = make_seeded(spec, seed).attribute(model, batch).detach()
            right, all_of_both = metric.count_hits(metric.rank_units(batch, gold, scores))
            counts[spec] = (hits + right.sum().item(), size + all_of_both.sum().item())
    found = [{"example": 0, "method": spec, "micro_f1": 2 * hits / size} for spec, (hits, size) in counts.items()]
    return pd.DataFrame(found)
