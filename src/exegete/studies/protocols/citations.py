"""Protocols of generated text with sources: what training changed, and whether citations hold what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset

    from exegete.models import ExplainedModel


def measure_drift(model: ExplainedModel, data: Dataset, *, original: str, n_masks: int = 64) -> dict[str, float]:
    """How alike two models take the loss of sources: Pearson's correlation of a response's log-probabilities.

    Args:
        model: trained on from the other one.
        data: prompts with sources and responses.
        original: folder of the other one.
        n_masks: random sets of sources that stay, those of the metric `lds`.
    """
    import numpy as np

    from exegete.metrics.faithfulness.ablation import Lds
    from exegete.models import load
    from exegete.models.rank_correlation import compute_pearson

    judge = Lds(level="source", how="remove", n_masks=n_masks)
    before, found = load(original, task="generation", device=model.device), []
    for row in data:
        batch = model.encode([row])
        target, there = model.resolve_target(batch), judge.draw_sets(judge.units(batch).amax(1) + 1)
        answers = [judge.evaluate_sets(each, batch, target, there).T for each in (model, before)]
        found.append(float(compute_pearson(*answers)))
    return {"ablation_agreement": float(np.mean(found))}


def measure_promises(
    model: ExplainedModel, data: Dataset, *, citation: str, calibration: Dataset, alpha: float = 0.1
) -> dict[str, float]:
    """How often the falls that citations promise are real (see `exegete.explainers.learned.conformal`).

    Args:
        model: trained by the recipe `cite`.
        data: new prompts with sources and responses.
        citation: the run's folder.
        calibration: other prompts, which bounds are calibrated on.
        alpha: the share of promises that may be wrong.
    """
    from exegete.explainers.learned.trained_citation import TrainedCitation
    from exegete.training.citations import calibrate_bounds, measure_citations, summarize_bounds

    cited = TrainedCitation.from_pretrained(citation)
    known, asked = ([measure_citations(model, cited, row, "remove") for row in rows] for rows in (calibration, data))
    made = calibrate_bounds(known, alpha)
    found = summarize_bounds([(each, made.lower_bounds(each.scores)) for each in asked])
    return {"promise_held": found["held"], "promise_share": found["promised"], "promise_prompts": found["bounded"]}
