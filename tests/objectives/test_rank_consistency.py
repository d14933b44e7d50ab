"""The loss of rank consistency: its limit is the metric, its gradient the derivative, and training lowers it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import families
from expound import ExpoundError, metric
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.models.rank_correlation import compute_mean_ranks, compute_spearman
from expound.objectives import RankConsistencyLoss, StepContext, TrainingStep
from expound.objectives.rank_consistency import compute_soft_ranks, soft_spearman_loss
from small import small


def make_explainer(model):
    torch.manual_seed(1)
    single = ParameterizedAttention.for_model(model, normalizer="softmax").double()
    with torch.no_grad():
        single.coefficients.copy_(torch.randn_like(single.coefficients))
    return single


def step_of(model, objective, training=False, texts=5):
    batch = model.encode([{"text": text, "label": 0} for text in families.examples("bert", texts)])
    outputs = model(batch, capture=objective.capture)
    return TrainingStep(model, batch, outputs, StepContext(training=training))


def test_soft_ranks_become_ranks_that_equal_values_share():
    values = torch.tensor([[3.0, 1.0, 1.0, 2.0, 9.0], [0.0, 5.0, 4.0, 4.0, 4.0]], dtype=torch.float64)
    counted = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    found = compute_soft_ranks(values, counted, 1e-9)
    assert found[0, :4].tolist() == [4.0, 1.5, 1.5, 3.0]
    torch.testing.assert_close(found[counted], compute_mean_ranks(values, counted)[counted])
    assert compute_soft_ranks(values, counted, 1e9)[1].tolist() == pytest.approx([3.0] * 5)


def test_its_limit_is_the_metric_over_all_pairs():
    model = small("bert").double()
    objective = RankConsistencyLoss(make_explainer(model), temperature=1e-7)
    step = step_of(model, objective)
    scores = objective.explain_prediction(step) * step.batch.attended
    found = metric("consistency").evaluate(model, step.batch, scores, objective.predicted_target(step))["consistency"]
    assert found.isfinite().all()
    assert objective(step).item() == pytest.approx(1 - found.double().mean().item(), abs=1e-6)
    assert objective.size(step.batch) == 10


def test_gradients_are_derivatives_and_none_reaches_the_other_side():
    torch.manual_seed(0)
    fixed, moved = torch.rand(3, 6, dtype=torch.float64), torch.rand(3, 6, dtype=torch.float64).requires_grad_()
    counted = torch.ones(3, 6, dtype=torch.bool)
    counted[0, 4:] = False
    assert torch.autograd.gradcheck(lambda x: soft_spearman_loss(fixed, x, counted, 0.3), (moved,))
    hard = 1 - compute_spearman(fixed, moved.detach(), counted).mean()
    assert soft_spearman_loss(fixed, moved, counted, 1e-8).item() == pytest.approx(hard.item())


def test_rows_that_do_not_vary_count_nothing_and_spoil_no_gradient():
    moved = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.2, 0.4]], dtype=torch.float64, requires_grad=True)
    fixed, counted = torch.tensor([[1.0, 2.0, 3.0]] * 2, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool)
    loss = soft_spearman_loss(fixed, moved, counted, 0.1)
    loss.backward()
    assert moved.grad.isfinite().all()
    assert not moved.grad[0].any()
    assert loss.item() == pytest.approx(0.0, abs=1e-3)


def test_following_it_makes_explanations_more_consistent():
    model = small("bert").double()
    single = make_explainer(model)
    objective = RankConsistencyLoss(single, temperature=0.3)
    optimizer = torch.optim.Adam([single.coefficients], lr=0.1)
    losses = []
    for _ in range(15):
        step = step_of(model, objective)
        loss = objective(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


def test_pairs_are_drawn_in_training_and_a_batch_of_one_has_none():
    model = small("bert").double()
    every = RankConsistencyLoss(make_explainer(model))
    some = replace(every, pairs=2)
    assert some(step_of(model, some)).item() == every(step_of(model, every)).item()
    assert some(step_of(model, some, training=True)).item() != every(step_of(model, every)).item()
    assert every(step_of(model, every, texts=1)).item() == 0
    with pytest.raises(ExpoundError, match="temperature"):
        RankConsistencyLoss(make_explainer(model), temperature=0)
