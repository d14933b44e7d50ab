"""A student that learns during the model's training: its steps by hand, its gradient, and edge cases."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import families
from expound import ExpoundError
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import Batch
from expound.objectives import (
    ComprehensivenessLoss,
    ConsistencyLoss,
    CrossEntropy,
    StepContext,
    SufficiencyLoss,
    TrainingStep,
)
from expound.training.bilevel.criteria import Simulatability, select_held_out
from expound.training.loop.training_module import TrainingModule
from small import PAIRS, small

FAMILIES = ["bert", "gpt2", "llama"]
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TRAINED = StepContext()
COEFFICIENTS = ["query_features", "key_features", "head_coefficients", "layer_coefficients"]


def scene(family="bert", head="SequenceClassification", normalizer="sparsemax", student=None, **options):
    """A model, its coefficients, and the criterion with a student of other weights."""
    quiet = QUIET if family == "bert" else {}
    torch.manual_seed(3)
    model = small(family, head, **quiet, initializer_range=0.3)
    start = student or small(family, head, **quiet, initializer_range=0.2)
    single = InterpretableAttention.for_model(model, normalizer=normalizer).double()
    with torch.no_grad():
        for value in single.state_dict().values():
            value.mul_(1 + 0.3 * torch.randn_like(value))
    options = {"student_learning_rate": 0.5, "outer_divergence": False} | options
    objective = Simulatability(single, **options).with_student(start)
    objective.student.double()
    return model, objective


def make_labeled_batch(model, texts=None):
    texts = families.SENTENCES[:4] if texts is None else texts
    if model.task.name == "span":
        batch = model.encode(PAIRS[:2] * 2)
        return replace(batch, labels=model.predict(batch))
    return model.encode([{"text": text, "label": i % 2} for i, text in enumerate(texts)])


def step_of(model, batch, objective, context=TRAINED):
    outputs = model(batch, capture=objective.capture)
    return TrainingStep(model, batch, outputs, context)


def teach_by_hand(objective, lesson, explained):
    """Return a copy of the student after one more SGD step."""
    student = copy.deepcopy(objective.student.network).requires_grad_(True)
    optimizer = torch.optim.SGD(student.parameters(), lr=objective.student_learning_rate)
    return step_by_hand(student, optimizer, objective, lesson, explained)


def step_by_hand(student, optimizer, objective, lesson, explained):
    """Take one step of the student's optimizer and return the student."""
    optimizer.zero_grad()
    outputs = student.explained(lesson, capture=student.explainer.capture)
    own = student.explainer.compute(student.explained, lesson, [lesson.labels], outputs)[0].scores
    (F.cross_entropy(outputs.logits, lesson.labels) + divergence_by_hand(explained, own, lesson)).backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), objective.max_norm)
    optimizer.step()
    return student


def divergence_by_hand(explained, own, batch):
    total = 0.0
    for row in range(len(batch)):
        real = batch.attended[row]
        p, q = (x[row, real].clamp(1e-7, 1 - 1e-7) for x in (explained, own))
        total = total + (explained[row, real] * (p.log() - q.log())).sum()
    return total / len(batch)


def classroom(model, objective):
    """A training step, its explanations, and the halves of its batch with the model's answers."""
    batch = make_labeled_batch(model)
    model.train()
    objective.student.train()
    step = step_of(model, batch, objective)
    said = replace(batch, labels=step.outputs.logits.argmax(-1))
    taught, judged = sides(batch)
    return step, objective.explain_prediction(step).detach()[taught], said.select(taught), said.select(judged)


def sides(batch):
    """Return the rows that teach and the rows that judge, and check that there are both."""
    held_out = select_held_out(batch, 0.5)
    assert 0 < held_out.sum() < len(batch)
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def test_the_student_steps_once_and_is_judged_after_a_second_step_on_what_it_was_not_taught():
    model, objective = scene()
    step, explained, lesson, exam = classroom(model, objective)
    after = teach_by_hand(objective, lesson, explained)
    untouched = copy.deepcopy(objective.student.network)
    term = objective(step)
    found = dict(objective.student.network.named_parameters())
    for name, weight in after.named_parameters():
        torch.testing.assert_close(found[name], weight, rtol=1e-10, atol=1e-12)
    assert not any(weight.requires_grad for weight in found.values())
    assert any(not torch.equal(weight, found[name]) for name, weight in untouched.named_parameters())
    judged = teach_by_hand(objective, lesson, explained)
    with torch.no_grad():
        expected = F.cross_entropy(judged.explained.eval()(exam).logits, exam.labels)
    torch.testing.assert_close(term.detach(), expected, rtol=1e-10, atol=1e-12)


def test_gradient_checkpointing_of_the_model_is_the_students_too_and_changes_no_gradient():
    found = []
    for is_checkpointed in (False, True):
        model, objective = scene("llama", normalizer="softmax", outer_divergence=True)
        if is_checkpointed:
            model.model.gradient_checkpointing_enable()
        model.train()
        objective.student.train()
        term = objective(step_of(model, make_labeled_batch(model), objective))
        term.backward()
        assert objective.student.network.explained.model.is_gradient_checkpointing == is_checkpointed
        slopes = [weight.grad for weight in objective.explainer.parameters()]
        found.append([term.detach(), *slopes, *objective.student.network.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_student_never_learns_from_held_out_examples(share):
    """An example's side does not depend on the other examples; of many examples the share judges."""
    draw = torch.Generator().manual_seed(0)
    texts = [" ".join("abcdefghij"[i] for i in torch.randint(10, (6,), generator=draw)) for _ in range(2000)]
    model = small("bert")
    side = select_held_out(model.encode([{"text": text} for text in texts]), share)
    assert side.float().mean().item() == pytest.approx(share, abs=0.04)
    for left in (False, True):
        padded = model.encode([{"text": text} for text in [*texts[:20], " ".join(texts[20:24])]])
        if left:
            gap = (~padded.attended).sum(1, keepdim=True)
            places = (torch.arange(padded.length) - gap) % padded.length
            inputs = {name: value.gather(1, places) for name, value in padded.inputs.items()}
            padded = replace(padded, inputs=inputs, attended=padded.attended.gather(1, places))
        assert torch.equal(select_held_out(padded, share)[:20], side[:20])
    everywhere = torch.ones(9, 5, dtype=torch.bool)
    images = Batch({"pixel_values": torch.rand(9, 3, 8, 8, generator=draw)}, everywhere, everywhere, everywhere.long())
    side = select_held_out(images, 0.5)
    assert side.any()
    assert not side.all()
    assert torch.equal(select_held_out(images.select([4]), 0.5), side[4:5])


@pytest.mark.parametrize("special_tokens", [True, False])
def test_a_student_that_is_the_model_has_nothing_to_learn_from_its_explanations(special_tokens):
    model = small("bert", **QUIET, initializer_range=0.3)
    pupil = Simulatability(student_weight=3.0).with_student(model, special_tokens).student.double()
    batch = make_labeled_batch(model)
    explained = InterpretableAttention.for_model(model, normalizer="softmax", special_tokens=special_tokens).double()
    same, other = explained.explain(model, batch, special_tokens=True).scores, pupil.network.explanation(batch)
    torch.testing.assert_close(same.detach(), other.detach(), rtol=1e-10, atol=1e-12)
    beside = pupil.network.loss(batch, same.detach()) - pupil.network.simulation(batch)
    assert beside.abs() < 1e-10
    uneven = same.detach() * torch.linspace(1, 2, same.shape[1])
    uneven = uneven / uneven.sum(1, keepdim=True)
    found = pupil.network.loss(batch, uneven) - pupil.network.simulation(batch)
    torch.testing.assert_close(found, 3 * divergence_by_hand(uneven, same.detach(), batch), rtol=1e-8, atol=1e-10)


def test_a_student_with_adamw_keeps_its_moments_also_in_files():
    model, objective = scene(student_optimizer="adamw", student_learning_rate=1e-2)
    step, explained, lesson, exam = classroom(model, objective)
    student = copy.deepcopy(objective.student.network).requires_grad_(True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2, weight_decay=0.0)
    objective(step)
    step_by_hand(student, optimizer, objective, lesson, explained)
    _, other = scene(student_optimizer="adamw", student_learning_rate=1e-2)
    other.student.load_state_dict(objective.student.state_dict())
    term = other(step)
    step_by_hand(student, optimizer, objective, lesson, explained)
    found = dict(other.student.network.named_parameters())
    for name, weight in student.named_parameters():
        torch.testing.assert_close(found[name], weight, rtol=1e-8, atol=1e-10)
    step_by_hand(student, optimizer, objective, lesson, explained)
    with torch.no_grad():
        expected = F.cross_entropy(student.explained.eval()(exam).logits, exam.labels)
    torch.testing.assert_close(term.detach(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("divergent", [False, True])
def test_its_gradient_is_that_of_differences_of_the_outer_loss(divergent):
    """At the lesson's explanations, through the student's second step; at the exam's where the loss has them."""
    model, objective = scene(normalizer="softmax", max_norm=1e6, outer_divergence=divergent)
    batch = make_labeled_batch(model)
    step = step_of(model, batch, objective)
    explained = objective.explain_prediction(step).detach().requires_grad_()
    said = replace(batch, labels=step.outputs.logits.argmax(-1))
    taught, judges = sides(batch)
    lesson, exam = said.select(taught), said.select(judges)
    fixed = replace(objective)
    object.__setattr__(fixed, "explain_prediction", lambda _: explained)
    (slope,) = torch.autograd.grad(fixed(step), explained)
    assert slope[taught].abs().max() > 1e-8
    assert bool(slope[judges].any()) is divergent

    def outer(value):
        judged = teach_by_hand(objective, lesson, value[taught])
        judged.explained.eval()
        with torch.no_grad():
            answers = F.cross_entropy(judged.explained(exam).logits, exam.labels)
            own = divergence_by_hand(value[judges], judged.explanation(exam), exam) if divergent else 0.0
            return answers + own

    for row, place in ((int(taught[0]), 1), (int(taught[-1]), 3), *([(int(judges[0]), 2)] if divergent else [])):
        there = torch.zeros_like(explained)
        there[row, place] = 1e-5
        rise = (outer(explained.detach() + there) - outer(explained.detach() - there)) / 2e-5
        assert slope[row, place].item() == pytest.approx(rise.item(), rel=1e-4)


@pytest.mark.parametrize("norm", ["sparsemax", "softmax"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_coefficient_and_the_model_get_a_gradient(family, norm):
    model, objective = scene(family, normalizer=norm)
    module = TrainingModule(model, [objective]).train()
    module(make_labeled_batch(model), StepContext())["terms"].sum().backward()
    for name in COEFFICIENTS:
        slope = getattr(objective.explainer, name).grad
        assert slope.isfinite().all()
        assert slope.any(), name
    queries = [
        name for name, _ in model.named_parameters() if "query.weight" in name or "q_proj" in name or "c_attn" in name
    ]
    assert queries
    assert all(model.get_parameter(name).grad.any() for name in queries)
    assert all(weight.grad is None for weight in objective.student.parameters())


def test_spans_are_simulated_too():
    model, objective = scene(head="QuestionAnswering")
    module = TrainingModule(model, [objective]).train()
    module(make_labeled_batch(model), StepContext())["terms"].sum().backward()
    assert objective.explainer.layer_coefficients.grad.any()


def test_in_evaluation_it_is_the_students_loss_at_the_models_answers():
    model, objective = scene()
    batch = make_labeled_batch(model)
    model.eval()
    objective.student.train()
    with torch.no_grad():
        found = objective(step_of(model, batch, objective, StepContext(training=False)))
        student = objective.student.network.explained.eval()
        expected = F.cross_entropy(student(batch).logits, model.predict(batch))
    torch.testing.assert_close(found, expected)


def test_all_four_criteria_train_one_explainer_together():
    model, simulated = scene()
    single = simulated.explainer
    every = [CrossEntropy(), simulated, ComprehensivenessLoss(single), SufficiencyLoss(single), ConsistencyLoss(single)]
    module = TrainingModule(model, every).train()
    assert list(module.learned) == ["simulatability", "simulatability_companion"]
    module(make_labeled_batch(model), StepContext())["terms"].sum().backward()
    assert all(getattr(single, name).grad.any() for name in COEFFICIENTS)


@pytest.mark.parametrize("texts", [["a film"], ["a", "a", "dull"]])
def test_a_batch_of_one_single_words_and_equal_scores_are_defined(texts):
    model, _ = scene()
    level = InterpretableAttention.for_model(model, normalizer="softmax", mix="literal", scales=(1e-30, 1e-30)).double()
    objective = Simulatability(level).with_student(small("bert", **QUIET))
    before = copy.deepcopy(objective.student.state_dict())
    module = TrainingModule(model, [objective]).train()
    term = module(make_labeled_batch(model, texts), StepContext())["terms"]
    assert term.isfinite().all()
    term.sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in module.parameters())
    if len(texts) == 1:
        assert term.item() == 0
        assert all(torch.equal(value, before[name]) for name, value in objective.student.state_dict().items())


def test_bad_input_to_simulatability_is_refused():
    model, objective = scene()
    with pytest.raises(ExpoundError, match="simulatability knows its examples by their words: set masked_share to 0"):
        TrainingModule(model, [objective], masked_share=0.5)
    model, objective = scene()
    for change, message in (
        ({"held_out": 1.0}, "held-out share"),
        ({"student_learning_rate": 0.0}, "expected a student_learning_rate above 0"),
        ({"student_weight": 0.0}, "expected a student_weight above 0"),
        ({"student_optimizer": "adam"}, "unknown student_optimizer 'adam'.*adamw, sgd"),
    ):
        with pytest.raises(ExpoundError, match=message):
            replace(objective, **change)
    with pytest.raises(ExpoundError, match="in one process"):
        objective(step_of(model, make_labeled_batch(model), objective, StepContext(rank=1)))
    several = small("bert", problem_type="multi_label_classification")
    batch = several.encode([{"text": "a film", "label": [1.0, 0.0, 0.0]}, {"text": "dull", "label": [1.0, 0.0, 1.0]}])
    single = InterpretableAttention.for_model(several).double()
    term = Simulatability(single).with_student(small("bert", **QUIET))
    with pytest.raises(ExpoundError, match="not several labels at once"):
        term(step_of(several, batch, term))
