"""Criteria that remove words: what replaces the words, and where gradients go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from expound.objectives import ComprehensivenessLoss, SufficiencyLoss
from expound.objectives.criterion import select_top
from small import shared
from test_criteria import ERASING, make_explainer, make_labeled_batch, step_of


@torch.no_grad()
def test_what_is_away_can_be_zero_vectors():
    model = shared("bert")
    batch = make_labeled_batch(model)
    term = ComprehensivenessLoss(make_explainer(model), perturbation="zero")
    step = step_of(model, batch, term)
    scores, clean = term.explain_prediction(step), step.outputs.logits.log_softmax(-1)
    target = clean.argmax(-1, keepdim=True)
    losses = []
    for share in (0.01, 0.05, 0.1, 0.2, 0.5):
        away = select_top(scores, batch.erasable, [share] * len(batch)).bool() & batch.erasable
        left = model(batch, model.embed(batch).masked_fill(away[..., None], 0.0)).logits.log_softmax(-1)
        losses.append((1 + left.gather(1, target) - clean.gather(1, target)).clamp(min=0))
    torch.testing.assert_close(term(step), torch.stack(losses).mean(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ERASING)
@pytest.mark.parametrize("held", [True, False])
def test_the_clean_answer_gets_a_gradient_unless_it_is_held_still(kind, held):
    model = shared("bert")
    term = kind(make_explainer(model), detach_clean=held, margin=9.0)
    step = step_of(model, make_labeled_batch(model), term)
    logits = step.outputs.logits.detach().requires_grad_()
    term(replace(step, outputs=replace(step.outputs, logits=logits))).backward()
    assert (logits.grad is None) == held


def test_the_temperature_is_that_of_the_choice():
    model = shared("bert")
    batch, single = make_labeled_batch(model), make_explainer(model)
    term = SufficiencyLoss(single, fractions=(0.2,), sample_fractions=False, margin=9.0, temperature=1.0)
    step = step_of(model, batch, term)
    (found,) = torch.autograd.grad(term(step), single.head_coefficients, retain_graph=True)
    top = select_top(term.explain_prediction(step), batch.erasable, [0.2] * len(batch), 1.0)
    left = model(batch, model.blend(batch, torch.where(batch.erasable, top, 1.0))).logits
    expected = term.compute_losses(step, left, step.outputs.logits.detach()).mean()
    (slope,) = torch.autograd.grad(expected, single.head_coefficients)
    assert slope.any()
    torch.testing.assert_close(found, slope, rtol=1e-8, atol=1e-12)
