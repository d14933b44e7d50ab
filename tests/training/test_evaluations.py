"""Terms evaluated on a share of the dev data, terms that do not move the weights, and evaluations done only once."""

from __future__ import annotations

import math

import pytest
import torch

import expound
from expound.objectives import CrossEntropy, RationaleAlignment, StepContext, VirtualAdversarialLoss
from expound.training import ObjectiveTrainer
from expound.training.bilevel.criteria import has_variance, summarize_criterion
from expound.training.loop.fine_tune import find_idle_terms
from expound.training.loop.options import DEFAULT_ARGUMENTS, RunOptions, make_training_arguments
from expound.training.loop.training_module import TrainingModule
from runs import ARGUMENTS, bert, load_generated


def test_dev_values_of_auxiliary_terms_are_those_of_evenly_spaced_rows_and_the_tasks_are_of_all():
    model, rows = bert(), list(load_generated(size=200).select(range(12)))
    module = TrainingModule(model, [CrossEntropy(), RationaleAlignment(expound.explainer("attention_last"))]).eval()
    evaluation = StepContext(training=False)
    with torch.no_grad():
        whole, few = (module(model.encode(part), evaluation)["terms"] for part in (rows, rows[::3]))
        module.evaluation_share = 1 / 3
        sampled = module(model.encode(rows), evaluation)["terms"]
    assert sampled[0].item() == pytest.approx(whole[0].item(), rel=1e-5)
    assert sampled[1].item() == pytest.approx(few[1].item(), rel=1e-5)
    assert abs(few[1] - whole[1]) > 1e-4


@pytest.mark.parametrize(("given", "at_once"), [({}, 64), ({"train": 2}, 8), ({"train": 2, "eval": 3}, 3)])
def test_an_evaluation_takes_few_rows_at_once_if_a_training_step_does(given, at_once, tmp_path):
    arguments = {f"per_device_{kind}_batch_size": size for kind, size in given.items()}
    made = make_training_arguments(
        RunOptions(arguments=arguments),
        DEFAULT_ARGUMENTS | {"metric_for_best_model": "loss"},
        tmp_path,
        {"loss": False},
    )
    assert made.per_device_eval_batch_size == at_once


def test_the_best_checkpoint_is_not_evaluated_a_second_time(tmp_path, monkeypatch):
    count, evaluate = [], ObjectiveTrainer.evaluation_loop
    monkeypatch.setattr(
        ObjectiveTrainer, "evaluation_loop", lambda *args, **kw: count.append(1) or evaluate(*args, **kw)
    )
    # the highest loss: an earlier epoch than the last is kept
    arguments = ARGUMENTS | {"num_train_epochs": 3, "learning_rate": 1e-3, "greater_is_better": True}
    data = {"train": load_generated(size=48), "dev": load_generated(split="dev", size=48)}
    result = expound.train("tiny", data, "er_joint", output_dir=tmp_path, args=arguments)
    # one before training, one per epoch
    assert len(count) == 4
    evaluated = [entry["eval_loss"] for entry in result.history if entry.get("step", 0) and "eval_loss" in entry]
    assert result.metrics["loss"] == max(evaluated) > evaluated[-1]
    with torch.no_grad():
        logits = result.model(result.model.encode(list(data["dev"]))).logits
    labels = torch.tensor(data["dev"]["label"][:])
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert result.metrics["cross_entropy"] == pytest.approx(loss.item(), rel=1e-4)


def test_terms_that_did_not_move_the_model_are_named_with_what_to_try():
    terms = [CrossEntropy(), VirtualAdversarialLoss()]
    norms = {"cross_entropy_gradient_norm": 6.5, "virtual_adversarial_gradient_norm": 0.001}
    (message,) = find_idle_terms([norms], terms)
    assert "its gradient is 0.02% of that of cross_entropy" in message
    assert "--radius" in message
    assert not list(find_idle_terms([norms | {"virtual_adversarial_gradient_norm": 0.1}], terms))
    unchanged = [{"eval_virtual_adversarial": value} for value in (0.5, 0.6, 0.501)]
    assert "did not change on dev" in next(find_idle_terms(unchanged, terms))
    (message,) = find_idle_terms([{"eval_coefficient_change": 0.0}, {"eval_coefficient_change": 0.0017}], terms)
    assert "changed by at most 0.0017 from 1" in message
    assert not list(find_idle_terms([{"eval_coefficient_change": 0.3}], terms))
    control = {f"eval_random_comprehensiveness_{name}": value for name, value in (("replaced", 0.4), ("removed", 0.05))}
    assert "random scores have comprehensiveness 0.40" in next(find_idle_terms([control], terms))
    assert not list(find_idle_terms([control, control | {"eval_random_comprehensiveness_replaced": 0.1}], terms))
    assert "70% of the dev explanations" in next(find_idle_terms([{"eval_constant_explanations": 0.7}], terms))


def test_gradient_norms_of_some_steps_are_logged_in_any_run_with_several_terms(tmp_path):
    data = {"train": load_generated(size=160), "dev": load_generated(split="dev", size=16)}
    arguments = ARGUMENTS | {"num_train_epochs": 2, "per_device_train_batch_size": 4, "eval_on_start": False}
    arguments |= {"logging_strategy": "steps"}
    result = expound.train("tiny", data, "er_joint", output_dir=tmp_path, args=arguments)
    logged = [entry for entry in result.history if "rationale_alignment_gradient_norm" in entry]
    assert 8 <= len(logged) <= 10
    assert all(entry["cross_entropy_gradient_norm"] > 0 for entry in logged)


def test_the_default_radius_lets_the_adversary_move_answers():
    model = bert()
    batch = model.encode(list(load_generated().select(range(8))))
    norms = []
    for radius in (1e-5, VirtualAdversarialLoss().radius):
        module = TrainingModule(model, [VirtualAdversarialLoss(radius=radius)]).eval()
        term = module(batch, StepContext())["terms"][0]
        gradients = torch.autograd.grad(
            term, [w for w in model.model.parameters() if w.requires_grad], allow_unused=True
        )
        norms.append(torch.nn.utils.get_total_norm([each for each in gradients if each is not None]).item())
    assert norms[1] > 100 * norms[0]


def test_a_criterion_that_is_mostly_undefined_has_no_value_that_could_choose_an_epoch():
    few = torch.tensor([0.9, *[math.nan] * 9])
    assert math.isnan(summarize_criterion("consistency", "classification", few))
    assert summarize_criterion("consistency", "classification", torch.tensor([0.1, 0.3, math.nan])) == pytest.approx(
        0.2
    )
    content = torch.tensor([[False, True, True, False]] * 2)
    scores = torch.tensor([[9.0, 0.0, 0.0, 0.0], [0.0, 0.1, 0.2, 0.0]])
    assert has_variance(scores, content).tolist() == [False, True]
