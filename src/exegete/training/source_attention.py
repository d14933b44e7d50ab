"""Coefficients of attention fitted to the effects of ablations (AT2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from exegete.explainers.learned.attention_to_source import AttentionToSource, features
from exegete.explainers.perturbation.context_cite import ContextCite, ablations, usual_units
from exegete.explainers.units import units
from exegete.models import Batch, ExplainedModel

EPSILON = 1e-8


def fitted(
    model: ExplainedModel, batches: Iterable[Batch], ablated: ContextCite, steps: int = 1000, rate: float = 1e-3
) -> AttentionToSource:
    """The explainer of a model, from the ablations of examples: Adam, the rate falling to 0 along a cosine.

    Args:
        model: what is explained; it stays as it is.
        batches: examples; each one's own prediction (or response) is explained.
        ablated: how many ablations of which units an example gets; the paper has 32.
        steps: on all examples at once.
        rate: the learning rate.
    """
    rows = [measured(model, batch, ablated) for batch in batches]
    inputs, answers = (torch.cat([row[place] for row in rows]) for place in (0, 1))
    made = AttentionToSource.untrained(model).to(model.device)
    made.coefficients.data = coefficients(inputs, answers, steps, rate).view_as(made.coefficients).to(made.coefficients)
    return made


@torch.no_grad()
def measured(model: ExplainedModel, batch: Batch, ablated: ContextCite) -> tuple[Tensor, Tensor]:
    """X [B, M, F], Σ_s ±φ_s with + for units that are present, and the answers' log-odds [B, M]."""
    with model.evaluating():
        target = model.target(batch)
        unit = units(batch, ablated.granularity or usual_units(batch))
        shares = features(model, batch, model(batch, capture=AttentionToSource(1, 1).capture), target, unit)
        counts = (unit.max(1).values + 1).tolist()
        present = torch.zeros(ablated.n_samples, len(batch), shares.shape[1], dtype=torch.bool)
        for row, count in enumerate(counts):
            masks = ablations(ablated.n_samples, count, ablated.keep, ablated.seed)
            present[:, row, :count] = torch.from_numpy(masks)
        present = present.to(batch.device)
        answers = replace(ablated, output=None).answers(model, batch, target, present, unit)
    signs = (2 * present.to(shares) - 1).transpose(0, 1)
    return signs @ shares, answers.T.to(shares)


def coefficients(inputs: Tensor, answers: Tensor, steps: int, rate: float) -> Tensor:
    """Weights w [F] of ‖w‖₁ = 1 that minimises −mean Pearson_m(Xw, y), for X [E, M, F] and y [E, M]."""
    with torch.enable_grad():
        weights = torch.full_like(inputs[0, 0], 1 / inputs.shape[-1], requires_grad=True)
        optimizer = torch.optim.Adam([weights], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            optimizer.zero_grad()
            disagreement(inputs @ weights, answers).backward()
            torch.nn.utils.clip_grad_norm_([weights], 1.0)
            optimizer.step()
            schedule.step()
    found = weights.detach()
    return found / found.abs().sum()


def disagreement(predictions: Tensor, answers: Tensor) -> Tensor:
    """−mean over rows of Pearson's correlation of [E, M] and [E, M], by population moments."""
    one, other = (x - x.mean(1, keepdim=True) for x in (predictions, answers))
    covariance = (one * other).mean(1)
    return -(covariance / (one.square().mean(1).sqrt() * other.square().mean(1).sqrt() + EPSILON)).mean()
