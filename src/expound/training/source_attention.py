"""Fits coefficients of attention or of hidden states to the effects of ablations (AT2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from expound.explainers.learned.base import FittedExplainer
from expound.explainers.perturbation.context_cite import ContextCite, default_unit
from expound.explainers.units import number_units
from expound.models import Batch, ExplainedModel
from expound.models.outputs import to_float32
from expound.models.rank_correlation import compute_pearson


class Effects(NamedTuple):
    """The effects of M ablations on E answers.

    `inputs` [E, M, F] are X = Σ_s ±φ_s, the sum of the units' features with + for units that are present; `answers`
    [E, M] are the answers' log-odds.
    """

    inputs: Tensor
    answers: Tensor

    @classmethod
    def concatenate(cls, parts: Iterable[Effects]) -> Effects:
        """Concatenate the effects of several batches."""
        inputs, answers = zip(*parts, strict=True)
        return cls(torch.cat(inputs), torch.cat(answers))


@torch.no_grad()
def measure_effects(
    learner: FittedExplainer, model: ExplainedModel, batch: Batch, ablated: ContextCite, targets: Sequence[Tensor] = ()
) -> Effects:
    """Measure the effects of ablations on each target of a batch; by default on its predictions or whole responses.

    `learner` computes the units' features.
    """
    with model.evaluation_mode(), model.cache_perturbed():
        unit = number_units(batch, ablated.unit or default_unit(batch))
        present = ablated.draw_masks(unit)
        signs = (2 * present.double() - 1).transpose(0, 1)
        outputs = model(batch, capture=learner.capture)
        asked, parts = replace(ablated, output=None), []
        for target in targets or [model.resolve_target(batch)]:
            shares = learner.features(model, batch, outputs, target, unit)
            shares = to_float32(shares)
            answers = asked.evaluate_masks(model, batch, target, present, unit)
            parts.append(Effects(signs.to(shares) @ shares, answers.T.to(shares)))
    return Effects.concatenate(parts)


def fit_coefficients(
    effects: Effects, steps: int = 1000, rate: float = 1e-3, batch: int = 512, seed: int = 0
) -> Tensor:
    """Return weights w [F] with ‖w‖₁ = 1 that minimize −mean Pearson_m(Xw, y), by Adam with a cosine schedule.

    Each step uses `batch` random answers, or all of them if there are fewer.
    """
    (inputs, answers), random = effects, torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        weights = torch.full_like(inputs[0, 0], 1 / inputs.shape[-1], requires_grad=True)
        optimizer = torch.optim.Adam([weights], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            drawn = torch.arange(len(inputs))
            if batch < len(inputs):
                drawn = torch.randperm(len(inputs), generator=random)
            few = drawn[:batch].to(inputs.device)
            optimizer.zero_grad()
            negative_correlation(inputs[few] @ weights, answers[few]).backward()
            torch.nn.utils.clip_grad_norm_([weights], 1.0)
            optimizer.step()
            schedule.step()
    # Correlations do not depend on the scale of w.
    result = weights.detach()
    return result / result.abs().sum()


def negative_correlation(predictions: Tensor, answers: Tensor) -> Tensor:
    """Return the negative mean over rows of Pearson's correlation of [E, M] and [E, M]."""
    return -compute_pearson(predictions, answers).mean()
