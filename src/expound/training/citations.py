"""Chooses the sparsity of trained citations, and calibrates lower bounds of what an answer loses without a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.spans import UnitName
from expound.explainers import Explainer
from expound.explainers.learned.conformal import ConformalLowerBound, shares
from expound.explainers.learned.trained_citation import TrainedCitation, sparsify
from expound.explainers.perturbation.coalitions import coalition_values
from expound.explainers.perturbation.context_cite import batch_ablation_masks
from expound.explainers.units import number_units, sum_by_unit
from expound.metrics.faithfulness.ablation import compute_lds, replace_infinite, with_log_output
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod

THRESHOLDS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
N_SETS, FIRST_SET = 32, 5000
"""Number of random sets of units for a threshold, and the first set's number, apart from training and the metric."""
THRESHOLD_ROWS = 256
"""Number of training examples that a threshold is chosen on."""
Example = Mapping[str, Any]


@dataclass(frozen=True)
class CitationMeasurement:
    """The scores of a prompt's U sources for each of T sentences of the answer, and the measured falls, both [T, U].

    A fall is the decrease of a sentence's log-probability when the source is removed. `kind`: the question's kind.
    """

    scores: NDArray[np.float64]
    falls: NDArray[np.float64]
    kind: str


@torch.no_grad()
def choose_threshold(
    model: ExplainedModel, method: Explainer, rows: Sequence[Example], unit: UnitName, perturbation: RemovalMethod
) -> float | None:
    """Return the share of the largest score below which scores become 0, chosen by the mean LDS on training examples.

    None means that no score is dropped.
    """
    log_model, fidelity = with_log_output(model), []
    for row in rows[:THRESHOLD_ROWS]:
        batch = model.encode([row])
        number, target = number_units(replace(batch, content=batch.erasable), unit), model.resolve_target(batch)
        present = batch_ablation_masks(N_SETS, number.amax(1) + 1, seed=FIRST_SET)
        answers = replace_infinite(coalition_values(log_model, batch, target, present, number, perturbation)).double()
        scores = sum_by_unit(method.attribute(model, batch, target), number).double()
        candidates = [scores, *[sparsify(scores, share) for share in THRESHOLDS]]
        fidelity.append([float(compute_lds(each, present, answers)) for each in candidates])
    # The LDS is undefined for constant scores: such a threshold must not win.
    means = np.nan_to_num(np.array(fidelity)).mean(0)
    best = int(means.argmax())
    return THRESHOLDS[best - 1] if best else None


@torch.no_grad()
def measure_citations(
    model: ExplainedModel, citation: TrainedCitation, row: Example, perturbation: RemovalMethod
) -> CitationMeasurement:
    """Return the scores and the measured falls of every source for every sentence of an example's response."""
    batch = model.encode([{name: value for name, value in row.items() if name != "kind"}])
    targets, number = find_sentences(batch), number_units(batch, citation.unit)
    scores = [sum_by_unit(each, number)[0] for each in citation.attribute_each(model, batch, targets)]
    # The full prompt first, then the prompt without each source in turn.
    one_removed = ~torch.eye(int(number.max()) + 1, dtype=torch.bool, device=batch.device)
    present = torch.cat([one_removed.new_ones(1, len(one_removed)), one_removed])[:, None]
    falls = []
    # All sentences are answers to the same perturbed prompts, which the cache runs once.
    with model.cache_perturbed():
        log_model = with_log_output(model)
        for target in targets:
            values = replace_infinite(coalition_values(log_model, batch, target, present, number, perturbation))[:, 0]
            falls.append(values[0] - values[1:])
    return CitationMeasurement(_to_array(scores), _to_array(falls), str(row.get("kind") or ""))


def find_sentences(batch: Batch) -> Tensor:
    """Return the sentences of the one response [T, 1, 2], as spans of its tokens."""
    (exchange,) = batch.exchanges or ()
    return torch.tensor(exchange.spans("sentences"), device=batch.device)[:, None]


def calibrate_bounds(measurements: Sequence[CitationMeasurement], error_rate: float) -> ConformalLowerBound:
    """Return lower bounds of falls, calibrated on prompts that the model was not trained on."""
    scores, falls = [each.scores for each in measurements], [each.falls for each in measurements]
    return ConformalLowerBound.calibrate(scores, falls, error_rate)


def compute_coverage(measurements: Sequence[CitationMeasurement], error_rate: float) -> dict[str, Any]:
    """Return how often bounds hold, for all prompts and for each kind, see `summarize_bounds`."""
    # Two-fold cross-validation: each half is tested with bounds that are calibrated on the other.
    halves = (measurements[::2], measurements[1::2])
    tested = []
    for half, other in (halves, halves[::-1]):
        bound = calibrate_bounds(other, error_rate)
        tested += [(each, bound.lower_bounds(each.scores)) for each in half]
    coverage = {"all": summarize_bounds(tested)}
    for kind in sorted({each.kind for each in measurements} - {""}):
        coverage[kind] = summarize_bounds([pair for pair in tested if pair[0].kind == kind])
    return coverage


def summarize_bounds(tested: Sequence[tuple[CitationMeasurement, NDArray[np.float64]]]) -> dict[str, float | int]:
    """Return how often the bounds of measured prompts hold.

    `held`: the share of bounds that hold, a mean over prompts with a bound; `promised`: the share of cited sources that
    have a bound; `prompts` and `bounded`: the number of prompts, and of prompts with a bound.
    """
    shares_held, n_bounds, n_cited = [], 0, 0
    for measurement, bounds in tested:
        has_bound = ~np.isnan(bounds)
        n_cited += int((shares(measurement.scores) > 0).sum())
        n_bounds += int(has_bound.sum())
        if has_bound.any():
            shares_held.append(float((measurement.falls[has_bound] >= bounds[has_bound]).mean()))
    return {
        "held": float(np.mean(shares_held)) if shares_held else float("nan"),
        "promised": n_bounds / n_cited if n_cited else 0.0,
        "prompts": len(tested),
        "bounded": len(shares_held),
    }


def _to_array(values: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.stack(list(values)).double().cpu().numpy()
