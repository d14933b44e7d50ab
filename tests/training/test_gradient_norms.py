"""The length of each term's gradient, as it is logged."""

from __future__ import annotations

import pytest
import torch

import expound
from expound.objectives import CrossEntropy, RationaleAlignment, StepContext
from expound.training.loop.training_module import TrainingModule
from runs import load_generated, trainer
from steps_of_eight import small_model


def norms_by_hand(model, batch, objectives):
    """Return the gradient norm of each weighted term, each from a separate forward and backward pass."""
    found = {}
    for objective in objectives:
        model.model.zero_grad()
        (TrainingModule(model, [objective]).train()(batch, StepContext())["terms"][0] * objective.weight).backward()
        slopes = [weight.grad.flatten() for weight in model.model.parameters() if weight.grad is not None]
        found[f"{objective.name}_gradient_norm"] = torch.cat(slopes).norm().item()
    model.model.zero_grad()
    return found


def test_each_weighted_terms_gradient_is_as_long_as_logged_and_training_is_the_same(tmp_path, monkeypatch):
    data = load_generated(size=200).select(range(8))
    objectives = [CrossEntropy(), RationaleAlignment(expound.explainer("attention_rollout"), weight=0.25)]
    settings = {"objectives": objectives, "max_steps": 1, "per_device_train_batch_size": 8, "max_grad_norm": 0.0}
    expected = norms_by_hand(small_model(), small_model().encode(list(data)), objectives)
    ends = []
    monkeypatch.setattr(TrainingModule, "_is_probed", lambda self, step: False)
    for should_log in (False, True):
        model = small_model()
        loop = trainer(tmp_path, model, data, **settings)
        loop.module.log_gradient_norms = should_log
        loop.train()
        ends.append(torch.cat([weight.detach().flatten() for weight in model.model.parameters()]))
        entry = next(entry for entry in loop.state.log_history if "loss" in entry)
        logged = {name: value for name, value in entry.items() if name.endswith("_gradient_norm")}
        assert logged == pytest.approx(expected if should_log else {}, rel=1e-4)
    assert torch.equal(*ends)
    assert expected["rationale_alignment_gradient_norm"] != pytest.approx(expected["cross_entropy_gradient_norm"])
