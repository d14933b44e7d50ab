"""Coefficients of attention or of hidden states fitted to the effects of ablations (AT2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from exegete.explainers.learned.base import FittedExplainer
from exegete.explainers.perturbation.context_cite import ContextCite, default_granularity
from exegete.explainers.units import number_units
from exegete.models import Batch, ExplainedModel
from exegete.models.rank_correlation import compute_pearson


class Effects(NamedTuple):
    """Of E explained answers under M ablations: X `inputs` [E, M, F], Σ_s ±φ_s with + for units that are present, and
    the `answers` [E, M], their log-odds.
    """

    inputs: Tensor
    answers: Tensor

    @classmethod
    def concatenate(cls, parts: Iterable[Effects]) -> Effects:
        """All of several batches."""
        inputs, answers = zip(*parts, strict=True)
        return cls(torch.cat(inputs), torch.cat(answers))


@torch.no_grad()
def measure_effects(
    learner: FittedExplainer, model: ExplainedModel, batch: Batch, ablated: ContextCite, targets: Sequence[Tensor] = ()
) -> Effects:
    """The effects of ablations on each target of a batch; without targets on its predictions (whole responses).

    `learner` says what is measured of the units.
    """
    with model.evaluation_mode(), model.cache_perturbed():
        unit = number_units(batch, ablated.granularity or default_granularity(batch))
        present = ablated.draw_masks(unit)
        signs = (2 * present.double() - 1).transpose(0, 1)
        outputs = model(batch, capture=learner.capture)
        asked, parts = replace(ablated, output=None), []
        for target in targets or [model.resolve_target(batch)]:
            shares = learner.features(model, batch, outputs, target, unit)
            shares = shares.to(torch.promote_types(shares.dtype, torch.float32))
            answers = asked.evaluate_masks(model, batch, target, present, unit)
            parts.append(Effects(signs.to(shares) @ shares, answers.T.to(shares)))
    return Effects.concatenate(parts)


def fit_coefficients(
    effects: Effects, steps: int = 1000, rate: float = 1e-3, batch: int = 512, seed: int = 0
) -> Tensor:
    """Weights w [F] of ‖w‖₁ = 1 that minimise −mean Pearson_m(Xw, y): Adam, its rate falling to 0 along a cosine.

    Each step sees `batch` answers, drawn by the seed; all of them where there are no more.
    """
    (inputs, answers), random = effects, torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        weights = torch.full_like(inputs[0, 0], 1 / inputs.shape[-1], requires_grad=True)
        optimizer = torch.optim.Adam([weights], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            drawn = torch.randperm(len(inputs), generator=random) if batch < len(inputs) else torch.arange(len(inputs))
            few = drawn[:batch].to(inputs.device)
            optimizer.zero_grad()
            negative_correlation(inputs[few] @ weights, answers[few]).backward()
            torch.nn.utils.clip_grad_norm_([weights], 1.0)
            optimizer.step()
            schedule.step()
    found = weights.detach()
    return found / found.abs().sum()


def negative_correlation(predictions: Tensor, answers: Tensor) -> Tensor:
    """−mean over rows of Pearson's correlation of [E, M] and [E, M], by population moments."""
    return -compute_pearson(predictions, answers).mean()
