"""Protocols on a model's words: attacks, sanity of explanations, plausibility over a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from expound.errors import ExpoundError

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from expound.models import ExplainedModel


def measure_attack(
    model: ExplainedModel, data: Dataset, *, budget: int | None = None, choices: int = 5, seed: int = 0
) -> dict[str, float]:
    """Attack a model by swaps of contractions, names, places and numbers (see `metrics.attack`).

    Args:
        model: a classifier.
        data: texts with labels.
        budget: maximum number of changed texts per example.
        choices: number of replacements tried per span.
        seed: random seed of the replacements.
    """
    from expound.metrics.attack import attack
    from expound.models.encoding.labels import renumber_labels

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
    """Measure the similarity of explanations after weights are randomized: Spearman's ρ, lower is better (Adebayo).

    Args:
        model: a trained model.
        data: the examples to explain.
        explainer: spec of an explainer.
        random_labels: folder of a model trained on shuffled labels, whose explanations are compared as well.
        absolute: whether to compare magnitudes of scores.
        seed: random seed of the weights.
    """
    import numpy as np

    from expound.explainers import attribute
    from expound.models import load
    from expound_papers.protocols.randomization import randomize_cascade, rank_correlations

    rows = list(data)
    _, *stages = map(float, randomize_cascade(model, rows, explainer, absolute=absolute, seed=seed).means)
    found = {"sanity_head": stages[0], "sanity_half": stages[len(stages) // 2], "sanity_all": stages[-1]}
    if random_labels:
        known, other = list(attribute(model, rows, explainer)), load(random_labels, device=model.device)
        others = attribute(other, rows, explainer, [item.target.value for item in known])
        found["sanity_labels"] = float(np.nanmean(rank_correlations(known, list(others), absolute=absolute)))
    return found


def measure_best_attention(
    model: ExplainedModel, data: Dataset, *, metric: str = "rationale_auc?absolute=false"
) -> dict[str, float]:
    """Measure the plausibility of the single most plausible attention layer (mean of its heads) and of the best head.

    This is `ParameterizedAttention` with one non-zero coefficient (Fernandes et al. 2022, Table 2: the rows that are
    supervised, since people's rationales choose the layer or head).

    Args:
        model: the judged model.
        data: texts with rationales; the layer and head are chosen on the same data.
        metric: spec of a metric of plausibility.
    """
    import torch

    from expound.explainers.learned.learned_attention import mean_head_logits, softmax_over
    from expound.metrics import metric as made
    from expound.models import Capture
    from expound.models.encoding.encode import make_batches
    from expound.models.encoding.labels import renumber_labels

    rows, judge = renumber_labels(model, data), made(metric)
    by_layer, by_head = list[torch.Tensor](), list[torch.Tensor]()
    with torch.no_grad():
        for indices in make_batches(model, rows):
            batch = model.encode([rows[index] for index in indices])
            outputs = model(batch, capture=Capture(heads=True))
            logits, target = mean_head_logits(model, batch, outputs), model.resolve_target(batch, None, outputs.logits)
            for found, maps in ((by_layer, logits.mean(2)), (by_head, logits.flatten(1, 2))):
                values = []
                for each in maps.unbind(1):
                    # The distribution over positions, with 0 at special tokens.
                    scores = softmax_over(each, batch.attended).masked_fill(~batch.content, 0)
                    values.append(judge.evaluate(model, batch, scores, target)[judge.name])
                found.append(torch.stack(values))
    best_layer, best_head = (torch.cat(found, 1).nanmean(1).max().item() for found in (by_layer, by_head))
    return {"best_layer": best_layer, "best_head": best_head}


def measure_micro_f1(
    model: ExplainedModel, data: Dataset, *, explainers: Sequence[str], k: int | None = None, seed: int
) -> pd.DataFrame:
    """Compute the micro-averaged F1 of the top-scored tokens of all texts against the marked ones, a row per explainer.

    Args:
        model: the model whose predictions are explained.
        data: texts with rationales; texts without an annotation are left out.
        explainers: specs of explainers.
        k: number of tokens per text, as in `token_f1`.
        seed: seed of the run.
    """
    import pandas as pd
    import torch

    from expound.explainers.registry import add_seed, explainer
    from expound.metrics.plausibility import TokenF1
    from expound.models.encoding.encode import make_batches
    from expound.models.encoding.labels import renumber_labels

    metric = TokenF1(unit="token", k=k)
    rows = [row for row in renumber_labels(model, data) if row["rationale"] is not None]
    if not rows:
        raise ExpoundError("micro_f1 needs texts with rationales: this dataset has none")
    counts = dict.fromkeys(explainers, (0.0, 0.0))
    for indices in make_batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        gold = batch.rationale_mask
        if gold is None:
            gold = torch.zeros_like(batch.content)
        for spec, (hits, size) in counts.items():
            scores = explainer(add_seed(spec, seed), model).attribute(model, batch).detach()
            right, all_of_both = metric.count_hits(metric.rank_units(batch, gold, scores))
            counts[spec] = (hits + right.sum().item(), size + all_of_both.sum().item())
    found = [{"example": 0, "method": spec, "micro_f1": 2 * hits / size} for spec, (hits, size) in counts.items()]
    return pd.DataFrame(found)
