"""Protocols of generated text with sources: agreement with the original model, and validity of citations' bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset

    from expound.models import ExplainedModel


def measure_drift(model: ExplainedModel, data: Dataset, *, original: str, n_samples: int = 64) -> dict[str, float]:
    """Measure how similarly two models react when sources are removed.

    It is the Pearson correlation of the log-probabilities of a response over random sets of sources that are kept,
    mean over prompts.

    Args:
        model: a model that was trained further from the original one.
        data: prompts with sources and responses.
        original: folder of the original model.
        n_samples: number of random sets of sources, as in the metric `lds`.
    """
    import numpy as np

    from expound.metrics.faithfulness.ablation import Lds
    from expound.models import load
    from expound.models.rank_correlation import compute_pearson

    judge = Lds(unit="source", perturbation="remove", n_samples=n_samples)
    before, found = load(original, task="generation", device=model.device), []
    for row in data:
        batch = model.encode([row])
        target, there = model.resolve_target(batch), judge.draw_sets(judge.units(batch).amax(1) + 1)
        one, other = (judge.evaluate_sets(each, batch, target, there).T for each in (model, before))
        found.append(float(compute_pearson(one, other)))
    return {"ablation_agreement": float(np.mean(found))}


def measure_promises(
    model: ExplainedModel, data: Dataset, *, citation: str, calibration: Dataset, error_rate: float = 0.1
) -> dict[str, float]:
    """Measure how often the drops that citations guarantee are real (see `expound.explainers.learned.conformal`).

    Args:
        model: a model trained by the recipe `cite`.
        data: prompts with sources and responses, not used in training.
        citation: the folder of that training run.
        calibration: other prompts, on which the bounds are calibrated.
        error_rate: the allowed share of wrong bounds.
    """
    from expound.explainers.learned.trained_citation import TrainedCitation
    from expound.training.citations import calibrate_bounds, measure_citations, summarize_bounds

    cited = TrainedCitation.from_pretrained(citation)
    known = [measure_citations(model, cited, row, "remove") for row in calibration]
    asked = [measure_citations(model, cited, row, "remove") for row in data]
    made = calibrate_bounds(known, error_rate)
    found = summarize_bounds([(each, made.lower_bounds(each.scores)) for each in asked])
    return {"promise_held": found["held"], "promise_share": found["promised"], "promise_prompts": found["bounded"]}
