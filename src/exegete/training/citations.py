"""Chooses how sparse a trained citation is, and calibrates what it promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.explainers import Explainer
from exegete.explainers.learned.conformal import ConformalLowerBound, shares
from exegete.explainers.learned.trained_citation import TrainedCitation, sparsify
from exegete.explainers.perturbation.coalitions import coalition_values
from exegete.explainers.perturbation.context_cite import batch_ablation_masks
from exegete.explainers.units import number_units, sum_by_unit
from exegete.metrics.faithfulness.ablation import compute_lds, replace_infinite, with_log_output
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod

THRESHOLDS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
N_SETS, FIRST_SET = 32, 5000
"""Random sets that thresholds are chosen on, and the number of the first: neither the metric's nor training's."""
THRESHOLD_ROWS = 256
"""Training rows that are enough for it."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class CitationMeasurement:
    """Of one prompt: scores [T, U] of its sources for each sentence of the answer, and the true falls [T, U]."""

    scores: NDArray[np.float64]
    falls: NDArray[np.float64]
    kind: str


@torch.no_grad()
def choose_threshold(
    model: ExplainedModel, method: Explainer, rows: Sequence[Row], unit: Granularity, how: RemovalMethod
) -> float | None:
    """Which share of the largest score units need, by the mean LDS on training rows; None: no score is dropped."""
    asked, found = with_log_output(model), []
    for row in rows[:THRESHOLD_ROWS]:
        batch = model.encode([row])
        number, target = number_units(replace(batch, content=batch.erasable), unit), model.resolve_target(batch)
        there = batch_ablation_masks(N_SETS, number.amax(1) + 1, seed=FIRST_SET)
        answers = replace_infinite(coalition_values(asked, batch, target, there, number, how)).double()
        scores = sum_by_unit(method.attribute(model, batch, target), number).double()
        choices = [scores, *(sparsify(scores, share) for share in THRESHOLDS)]
        found.append([float(compute_lds(each, there, answers)) for each in choices])
    means = np.nan_to_num(np.array(found)).mean(0)
    best = int(means.argmax())
    return THRESHOLDS[best - 1] if best else None


@torch.no_grad()
def measure_citations(
    model: ExplainedModel, citation: TrainedCitation, row: Row, how: RemovalMethod
) -> CitationMeasurement:
    """Cites every sentence of a row's response, and takes away each source in turn."""
    batch = model.encode([{name: value for name, value in row.items() if name != "kind"}])
    targets, number = find_sentences(batch), number_units(batch, citation.unit)
    scores = [sum_by_unit(each, number)[0] for each in citation.attribute_each(model, batch, targets)]
    one_gone = ~torch.eye(int(number.max()) + 1, dtype=torch.bool, device=batch.device)
    there = torch.cat([one_gone.new_ones(1, len(one_gone)), one_gone])[:, None]
    with model.cache_perturbed():
        asked = with_log_output(model)
        answers = [replace_infinite(coalition_values(asked, batch, each, there, number, how))[:, 0] for each in targets]
    falls = [own[0] - own[1:] for own in answers]
    return CitationMeasurement(_array(scores), _array(falls), str(row.get("kind") or ""))


def find_sentences(batch: Batch) -> Tensor:
    """[T, 1, 2] The sentences of the one response, as spans of its tokens."""
    (exchange,) = batch.exchanges or ()
    return torch.tensor(exchange.spans("sentences"), device=batch.device)[:, None]


def calibrate_bounds(found: Sequence[CitationMeasurement], alpha: float) -> ConformalLowerBound:
    """Calibrated on prompts that the model was not trained on."""
    return ConformalLowerBound.calibrate([each.scores for each in found], [each.falls for each in found], alpha)


def compute_coverage(found: Sequence[CitationMeasurement], alpha: float) -> dict[str, Any]:
    """How often bounds hold, of prompts that they are not calibrated on: each half by the other.

    `held` of sources with a bound, mean over prompts; `promised`: the share of cited sources that have one. For all
    prompts, and for each kind of them.
    """
    halves = (found[::2], found[1::2])
    judged = []
    for half, other in (halves, halves[::-1]):
        bound = calibrate_bounds(other, alpha)
        judged += [(each, bound.lower_bounds(each.scores)) for each in half]
    kinds = sorted({each.kind for each in found if each.kind})
    return {
        kind or "all": summarize_bounds([pair for pair in judged if kind in ("", pair[0].kind)])
        for kind in ["", *kinds]
    }


def summarize_bounds(judged: Sequence[tuple[CitationMeasurement, NDArray[np.float64]]]) -> dict[str, float | int]:
    """How often the bounds of measured prompts hold, see `compute_coverage`; `bounded`: how many prompts have one."""
    right, promised, cited = [], 0, 0
    for each, bounds in judged:
        told = ~np.isnan(bounds)
        cited += int((shares(each.scores) > 0).sum())
        promised += int(told.sum())
        right += [float((each.falls[told] >= bounds[told]).mean())] if told.any() else []
    share, mean = promised / cited if cited else 0.0, float(np.mean(right)) if right else float("nan")
    return {"held": mean, "promised": share, "prompts": len(judged), "bounded": len(right)}


def _array(values: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.stack(list(values)).double().cpu().numpy()
