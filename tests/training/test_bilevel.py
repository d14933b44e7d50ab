"""A student's lookahead step, differentiated at an explanation, against a graph through it and differences."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from expound import ExpoundError
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.models import Batch
from expound.models.passes.hooks import skip_unread_positions
from expound.training.bilevel.lookahead import (
    LookaheadStep,
    Student,
    clip_factor,
    make_inner_optimizer,
    seeded_random_state,
)
from small import PAIRS, small, uneven
from unrolled import UnrolledStep

KINDS = {
    "text": ("bert", {}),
    "decoder": ("gpt2", {}),
    "image": ("vit", {}),
    "regression": ("roberta", {"num_labels": 1, "problem_type": "regression"}),
    "span": ("bert", {"head": "QuestionAnswering"}),
}
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
MODES = {"forward": LookaheadStep, "unrolled": UnrolledStep}
OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.3, weight_decay=0.01),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.3, momentum=0.9, dampening=0.2, weight_decay=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
}


class Scene:
    """A student in training mode, what it learns from, and what it is judged by."""

    def __init__(self, kind="text", optimizer="sgd", max_norm=None, steps=0, **changes):
        family, own = KINDS[kind]
        dropped = {} if family == "gpt2" else DROPOUT
        model = small(family, **({"initializer_range": 0.3} | dropped | own | changes))
        self.student = Student(model, ParameterizedAttention.for_model(model, normalizer="softmax").double(), 5.0)
        rows = [*PAIRS, PAIRS[0]] if kind == "span" else uneven(family, 4)
        self.inner, self.outer = (label_with_predictions(model, rows[half]) for half in (slice(2), slice(2, 4)))
        weights = torch.randn(self.inner.attended.shape, generator=torch.Generator().manual_seed(1)).double()
        self.taught = weights.masked_fill(~self.inner.attended, -torch.inf).softmax(-1)
        self.optimizer = OPTIMIZERS[optimizer](list(self.student.parameters()))
        model.train()
        for _ in range(steps):
            self.student("loss", self.inner, self.taught).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.max_norm = max_norm

    def lookahead(self, mode):
        update = make_inner_optimizer(self.optimizer, self.student.trainable_weights())
        return MODES[mode](self.student, update, self.max_norm)

    def gradient(self, mode="forward"):
        return self.lookahead(mode).gradient(self.inner, self.taught, self.outer, seed=3)


def label_with_predictions(model, rows) -> Batch:
    batch = model.encode(rows)
    labels = {
        "classification": torch.tensor([0, 2]),
        "regression": torch.tensor([0.7, -1.2], dtype=torch.float64),
        "span": torch.tensor([[4, 5], [6, 6]]),
    }
    return replace(batch, labels=labels[model.task.name])


def assert_close(found, expected):
    assert expected.abs().max() > 1e-9
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_one_forward_mode_pass_gives_what_double_backward_gives_with_dropout(kind):
    scene = Scene(kind, max_norm=0.5)
    (found, loss), (expected, same) = scene.gradient(), scene.gradient("unrolled")
    assert_close(found, expected)
    assert float(loss) == pytest.approx(float(same), rel=1e-12)
    assert not found.requires_grad


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_after_backward_equals_that_of_a_separate_lookahead_step(kind, optimizer):
    scene = Scene(kind, optimizer, max_norm=0.5, steps=1)
    expected, loss = scene.gradient("unrolled")
    with seeded_random_state(3):
        scene.student("loss", scene.inner, scene.taught).backward()
    weights = scene.student.trainable_weights()
    kept = {name: (weight.detach().clone(), copy.deepcopy(weight.grad)) for name, weight in weights.items()}
    taken = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    found, same = scene.lookahead("forward").gradient(scene.inner, scene.taught, scene.outer, 3, gradients=taken)
    assert_close(found, expected)
    assert float(loss) == pytest.approx(float(same), rel=1e-12)
    for name, (value, slope) in kept.items():
        assert torch.equal(weights[name], value)
        assert slope is weights[name].grad is None or torch.equal(weights[name].grad, slope)


@pytest.mark.parametrize("kind", KINDS)
def test_an_outer_loss_with_explanations_has_gradients_at_both_explanations(kind):
    scene = Scene(kind, "adamw", max_norm=0.5, steps=1)
    positions = torch.arange(1.0, scene.outer.length + 1, dtype=torch.float64)
    shares = positions.expand(len(scene.outer), -1).masked_fill(~scene.outer.attended, 0)
    shares = shares / shares.sum(1, keepdim=True)
    found = {}
    for mode in ("forward", "unrolled"):
        leaf = shares.clone().requires_grad_()
        slope, loss = scene.lookahead(mode).gradient(scene.inner, scene.taught, scene.outer, 3, leaf)
        found[mode] = (slope, leaf.grad, loss)
    for one, other in zip(found["forward"], found["unrolled"], strict=True):
        assert_close(one, other)
    plain = scene.gradient()
    assert not torch.allclose(found["forward"][0], plain[0])
    assert found["forward"][2] > plain[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_both_modes_follow_each_optimizers_step(optimizer):
    scene = Scene(optimizer=optimizer, steps=2)
    assert_close(scene.gradient()[0], scene.gradient("unrolled")[0])


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_lookahead_step_equals_the_optimizers_step(optimizer, steps):
    scene = Scene(optimizer=optimizer, steps=steps)
    weights = scene.student.trainable_weights()
    update = make_inner_optimizer(scene.optimizer, weights)
    scene.student("loss", scene.inner, scene.taught).backward()
    expected = {
        name: update(name, weight.detach(), weight.grad) for name, weight in weights.items() if weight.grad is not None
    }
    taken = {name: update.step(name, weights[name], weights[name].grad.clone()) for name in expected}
    scene.optimizer.step()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name].detach(), value, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(taken[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["forward", "unrolled"])
def test_the_gradient_equals_finite_differences_through_a_real_step(mode):
    """The reference takes the optimizer's step, with the same dropout, and judges the student after it."""
    scene = Scene(max_norm=100.0)
    direction = torch.randn(scene.taught.shape, generator=torch.Generator().manual_seed(0)).double()
    direction = direction.masked_fill(~scene.inner.attended, 0)
    ends = []
    for size in (1e-5, -1e-5):
        other = copy.deepcopy((scene.student, scene.optimizer))
        student, optimizer = other
        with seeded_random_state(3):
            student("loss", scene.inner, scene.taught + size * direction).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 100.0)
        optimizer.step()
        with student.explained.evaluation_mode(), torch.no_grad():
            ends.append(float(student("simulation", scene.outer)))
    found = (scene.gradient(mode)[0] * direction).sum()
    assert float(found) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_the_student_and_the_random_state_do_not_change():
    scene = Scene(optimizer="adamw", steps=1)
    before = copy.deepcopy((scene.student.state_dict(), scene.optimizer.state_dict()["state"]))
    state = torch.get_rng_state()
    for mode in ("forward", "unrolled"):
        scene.gradient(mode)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[0][name]) for name, value in scene.student.state_dict().items())
    for key, values in scene.optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[1][key][name]) for name, value in values.items())
    assert all(weight.grad is None for weight in scene.student.parameters())
    assert scene.student.explained.model.training


@pytest.mark.parametrize("mode", ["forward", "unrolled"])
def test_padding_changes_nothing(mode):
    """One example beside a longer one or alone; no dropout, whose draws depend on shapes."""
    scene = Scene(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    short = int(scene.inner.attended.sum(1).argmin())
    wide = scene.inner.select([short])
    narrow, columns = wide.trim_padding()
    assert narrow.length < wide.length
    lookahead = scene.lookahead(mode)
    taught = scene.taught[[short]]
    found = lookahead.gradient(wide, taught, scene.outer, 0)[0]
    assert_close(found[:, columns], lookahead.gradient(narrow, taught[:, columns], scene.outer, 0)[0])


def test_an_explanation_costs_no_more_than_its_heads_and_is_the_one_of_a_whole_pass():
    scene = Scene()
    ran = []
    hook = scene.student.explained.model.classifier.register_forward_hook(lambda *_: ran.append(1))
    with scene.student.explained.evaluation_mode(), torch.no_grad():
        found = scene.student("explanation", scene.inner)
        assert ran == []
        expected = scene.student.explainer.explain(scene.student.explained, scene.inner, special_tokens=True).scores
        assert ran
    hook.remove()
    torch.testing.assert_close(found, expected)
    assert scene.student.explained.model.config._attn_implementation != "expound"


def test_without_weight_or_explanation_the_student_learns_answers_alone():
    scene = Scene(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    scene.student.weight = 0.0
    alone = scene.student("loss", scene.inner)
    assert torch.equal(scene.student("loss", scene.inner, scene.taught), alone)
    assert torch.equal(scene.student("simulation", scene.inner), alone)


def test_clipping_is_torchs():
    gradients = [torch.randn(3, 4), torch.randn(5)]
    for norm in (0.1, 1e3):
        parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(parameters, norm)
        factor = clip_factor(gradients, norm)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(parameter.grad, factor * gradient)


def test_a_question_answering_student_keeps_every_position():
    model = small("bert", "QuestionAnswering", initializer_range=0.3)
    batch = replace(model.encode(PAIRS), labels=torch.tensor([[7, 8], [8, 9], [6, 7]]))
    student = Student(model, ParameterizedAttention.for_model(model).double(), 5.0)
    taught = batch.attended / batch.attended.sum(1, keepdim=True).double()
    optimizer = OPTIMIZERS["sgd"](list(student.parameters()))
    pair = [
        step(student, make_inner_optimizer(optimizer, student.trainable_weights())).gradient(batch, taught, batch, 0)[0]
        for step in MODES.values()
    ]
    assert_close(*pair)
    with skip_unread_positions(model, batch):
        assert model(batch).logits.shape[-1] == batch.length


def test_unsupported_optimizers_are_refused():
    weights = {"w": torch.nn.Parameter(torch.ones(2))}
    with pytest.raises(ExpoundError, match="SGD"):
        make_inner_optimizer(torch.optim.RMSprop(weights.values()), weights)
    with pytest.raises(ExpoundError, match="does not step other"):
        make_inner_optimizer(torch.optim.SGD(weights.values()), {"other": torch.nn.Parameter(torch.ones(1))})
    with pytest.raises(ExpoundError, match="amsgrad"):
        make_inner_optimizer(torch.optim.Adam(weights.values(), amsgrad=True), weights)
