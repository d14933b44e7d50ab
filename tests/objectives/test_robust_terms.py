"""Gradient penalty and virtual adversarial term: finite differences, brute force, and what dropout must not do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, kl_divergence

import expound
import families
from expound import ExpoundError
from expound.models import ExplainedModel
from expound.objectives import (
    CrossEntropy,
    GradientPenalty,
    RationaleAlignment,
    StepContext,
    TrainingStep,
    VirtualAdversarialLoss,
    task_losses,
)
from expound.objectives.virtual_adversarial import prediction_divergence
from expound.testing.models import replace_layer_norms
from expound.training.loop.training_module import TrainingModule
from smooth import along_directions

TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FIRST = StepContext()
WIDE = {"radius": 0.05, "step_size": 0.02, "stdevs": 0.01}


def model(head="SequenceClassification", **changes):
    changes = {"dtype": torch.float64} | TINY | changes
    return ExplainedModel(families.tiny("bert", head, **changes), families.tokenizer("bert"))


def make_labeled_batch(explained, count=3):
    return explained.encode([{"text": text, "label": i % 3} for i, text in enumerate(families.examples("bert", count))])


def step_of(explained, batch, context=FIRST):
    outputs = explained(batch)
    return TrainingStep(explained, batch, outputs, context)


def test_the_penalty_is_the_norm_of_finite_differences():
    explained = model(**QUIET)
    batch = make_labeled_batch(explained)
    module = TrainingModule(explained, [GradientPenalty()]).train()
    found = module(batch, StepContext())["terms"][0]
    norms, size = [], 1e-5
    for row in range(len(batch)):
        one = batch.select([row]).trim_padding()[0]
        start = explained.embed(one).detach()
        moves = size * torch.eye(start.numel(), dtype=torch.float64).view(-1, *start.shape[1:])
        many = one.select([0] * len(moves))
        with torch.no_grad():
            up, down = (
                task_losses(explained, many, explained(many, start + sign * moves).logits)[0] for sign in (1, -1)
            )
        norms.append(((up - down) / (2 * size)).norm())
    torch.testing.assert_close(found.detach(), torch.stack(norms).mean(), rtol=1e-6, atol=0)
    judged = TrainingModule(explained, [GradientPenalty()]).eval()
    with torch.no_grad():
        torch.testing.assert_close(judged(batch, StepContext(training=False))["terms"][0], found.detach())


def test_derivatives_of_the_penalty_of_first_and_second_order():
    explained = model(num_hidden_layers=2, **QUIET)
    replace_layer_norms(explained)
    batch = make_labeled_batch(explained, 1)
    at = along_directions(TrainingModule(explained, [GradientPenalty()]).train(), batch)
    point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(at, (point,), eps=1e-6, atol=1e-7, rtol=1e-4)
    assert torch.autograd.gradgradcheck(at, (point,), eps=1e-6, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("guide", ["input_x_gradient", "attention_rollout"])
@pytest.mark.parametrize("turned", [False, True])
def test_the_terms_share_a_pass_with_other_terms_in_any_order(guide, turned):
    explained = model()
    batch = explained.encode([{"text": families.SENTENCES[0], "label": 1, "rationale": [[2, 8]]}])
    objectives = [
        CrossEntropy(),
        RationaleAlignment(expound.explainer(guide)),
        GradientPenalty(),
        VirtualAdversarialLoss(),
    ]
    module = TrainingModule(explained, objectives[::-1] if turned else objectives)
    terms = module.train()(batch, StepContext())["terms"]
    terms.sum().backward()
    assert torch.isfinite(terms).all()
    with torch.no_grad():
        assert torch.isfinite(module.eval()(batch, StepContext(training=False))["terms"]).all()


@pytest.mark.parametrize("form", ["literal", "smart"])
def test_no_perturbation_is_zero_even_under_dropout(form):
    explained = model().train()
    step = step_of(explained, make_labeled_batch(explained))
    other = explained(step.batch).logits
    assert prediction_divergence(step, other, step.outputs.logits).min() > 0
    assert float(VirtualAdversarialLoss(form=form, ascent_steps=0, stdevs=0.0)(step).detach()) == 0.0


@pytest.mark.parametrize("form", ["literal", "smart"])
def test_every_step_of_ascent_raises_it(form):
    explained = model().train()
    step = step_of(explained, make_labeled_batch(explained))
    scale = {} if form == "literal" else {"step_size": 100.0}
    climbed = [
        float(VirtualAdversarialLoss(form=form, ascent_steps=steps, **WIDE | scale)(step).detach())
        for steps in range(3)
    ]
    assert 0 < climbed[0] < climbed[1] < climbed[2]


def test_the_same_moment_gives_the_same_loss_whatever_the_global_generator_did():
    explained = model().train()
    batch = make_labeled_batch(explained)
    objective = VirtualAdversarialLoss(**WIDE)
    found = []
    for seed, number in ((1, 3), (2, 3), (1, 4)):
        torch.manual_seed(seed)
        step = step_of(explained, batch, StepContext(7, number))
        before = torch.get_rng_state()
        found.append(objective(step).detach())
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("form", "radius", "bound"), [("literal", 1e-3, 1e-3), ("literal", 1e-5, 1e-5), ("smart", 1e-3, 1.0)]
)
def test_the_perturbation_stays_in_its_radius_and_off_padding(form, radius, bound):
    explained = model().train()
    batch = make_labeled_batch(explained)
    assert not batch.attended.all()
    step = step_of(explained, batch)
    embeddings = explained.embed(batch).detach()
    clean = explained(batch).logits.detach()
    delta = VirtualAdversarialLoss(form=form, radius=radius).find_perturbation(
        step, embeddings, clean, lambda e: explained(batch, e).logits
    )
    assert not delta.requires_grad
    assert not delta[~batch.attended].any()
    assert delta[batch.attended].any()
    assert delta.abs().max() <= bound


def test_one_step_by_hand():
    """Two positions of two dimensions; the second one has no slope."""
    delta, slope = torch.tensor([[[1.0, -2.0], [3.0, 0.5]]]), torch.tensor([[[-4.0, 2.0], [0.0, 0.0]]])
    literal = VirtualAdversarialLoss(step_size=2.0, radius=2.5).update_perturbation(delta, slope)
    torch.testing.assert_close(literal, torch.tensor([[[-1.0, -1.0], [2.5, 0.5]]]))
    smart = VirtualAdversarialLoss(form="smart", step_size=2.0, radius=1.0).update_perturbation(delta, slope)
    torch.testing.assert_close(smart, torch.tensor([[[-7 / 8, 2 / 8], [3 / 4, 0.5 / 4]]]))


def test_divergences_are_those_of_torch():
    torch.manual_seed(0)
    one, other = torch.randn(2, 4, 3, dtype=torch.float64)
    explained = model()
    step = step_of(explained, make_labeled_batch(explained))
    pair = (one.log_softmax(1), other.log_softmax(1))
    both = sum(F.kl_div(b, a, reduction="none", log_target=True).sum(1) for a, b in (pair, pair[::-1]))
    torch.testing.assert_close(prediction_divergence(step, one, other), both)
    on = replace(step, model=model(problem_type="multi_label_classification"))
    ways = ((one, other), (other, one))
    each = sum(kl_divergence(Bernoulli(logits=a), Bernoulli(logits=b)).mean(1) for a, b in ways)
    torch.testing.assert_close(prediction_divergence(on, one, other), each)
    value = replace(step, model=model(num_labels=1, problem_type="regression"))
    torch.testing.assert_close(prediction_divergence(value, one[:, :1], other[:, :1]), (one - other)[:, 0] ** 2)


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_no_two_answers_are_less_than_nothing_apart_and_none_is_apart_from_itself(kind):
    changes = {
        "classification": {},
        "multi_label": {"problem_type": "multi_label_classification"},
        "regression": {"num_labels": 1, "problem_type": "regression"},
    }[kind]
    explained = model(**changes)
    step = replace(step_of(model(), make_labeled_batch(model())), model=explained)
    torch.manual_seed(1)
    one, other = 20 * torch.randn(2, 200, 1 if kind == "regression" else 3)
    assert (prediction_divergence(step, one, other) > 0).all()
    assert not prediction_divergence(step, one, one).any()
    near = prediction_divergence(step, one, one + 1e-4 * other)
    assert (near >= 0).all()


def test_spans_with_padding_are_finite():
    explained = model("QuestionAnswering", num_labels=2)
    batch = explained.encode([("who laughs", "nobody laughs at the jokes"), ("where", "in the rain")])
    batch = replace(batch, labels=torch.tensor([[3, 3], [-1, -1]]))
    module = TrainingModule(explained, [GradientPenalty(), VirtualAdversarialLoss(**WIDE)]).train()
    terms = module(batch, StepContext())["terms"]
    assert (terms > 0).all()
    terms.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in explained.parameters() if weight.grad is not None)


def test_the_gradient_of_the_adversarial_term_goes_through_both_answers():
    """With noise alone the perturbation does not depend on the weights."""
    explained = model(num_hidden_layers=2)
    objective = VirtualAdversarialLoss(ascent_steps=0, stdevs=0.3)
    at = along_directions(TrainingModule(explained, [objective]).train(), make_labeled_batch(explained, 2))
    point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(at(point).sum(), point)
    assert slope.abs().min() > 1e-9
    assert torch.autograd.gradcheck(at, (point,), eps=1e-6, atol=1e-8, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "vat"}, "unknown form"),
        ({"ascent_steps": -1}, "ascent_steps is at least 0"),
        ({"radius": -1.0}, "radius"),
    ],
)
def test_bad_choices_are_named(arguments, message):
    with pytest.raises(ExpoundError, match=message):
        VirtualAdversarialLoss(**arguments)
