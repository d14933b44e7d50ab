"""Teachers' answers that are kept: when a teacher is asked again, and what a checkpoint holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.models import ExplainedModel
from expound.objectives import ExplanationGuidedLoss, StepContext
from expound.objectives.teacher_memory import TeacherMemory
from expound.training.loop.training_module import TrainingModule

TEXTS = families.examples("bert", 5)


@pytest.fixture(scope="module")
def model():
    return ExplainedModel(families.tiny("bert"), families.tokenizer("bert"))


def make_labeled_batch(model, texts=TEXTS):
    return model.encode([{"text": text, "label": TEXTS.index(text) % 3} for text in texts])


class Asked:
    """A teacher that records its texts and gives other scores in every epoch."""

    def __init__(self):
        self.texts, self.epoch = [], 0

    def __call__(self, batch, target):
        self.texts += [alignment.texts[0] for alignment in batch.alignments]
        ids = batch.inputs["input_ids"].float()
        return (ids + 1000 * self.epoch + 0.5 * target[:, None]) * batch.content


@pytest.mark.parametrize(("lifetime", "asked_in"), [(1, [0, 1, 2, 3]), (2, [0, 2]), (10, [0])])
def test_a_teacher_is_asked_once_a_lifetime_about_each_example(model, lifetime, asked_in):
    memory, teacher = TeacherMemory(), Asked()
    for epoch in range(4):
        teacher.texts, teacher.epoch = [], epoch
        for part in (TEXTS[:2], TEXTS[2:], TEXTS[:1]):
            batch = make_labeled_batch(model, part)
            found = memory.get_scores(batch, batch.labels, epoch, lifetime, teacher)
            said = max(number for number in asked_in if number <= epoch)
            ids = batch.inputs["input_ids"].float() + 1000 * said + 0.5 * batch.labels[:, None]
            torch.testing.assert_close(found, ids * batch.content)
        assert teacher.texts == (TEXTS if epoch in asked_in else [])


def test_padding_order_and_neighbors_do_not_matter_and_targets_do(model):
    memory, teacher = TeacherMemory(), Asked()
    batch = make_labeled_batch(model)
    first = memory.get_scores(batch, batch.labels, 0, 1, teacher)
    rows = [3, 0]
    turned, columns = batch.select(rows).trim_padding()
    again = memory.get_scores(turned, turned.labels, 0, 1, teacher)
    assert torch.equal(again, first[rows][:, columns])
    assert len(teacher.texts) == len(TEXTS)
    memory.get_scores(turned, 2 - turned.labels, 0, 1, teacher)
    assert len(teacher.texts) > len(TEXTS)


def test_the_same_words_cut_into_another_pair_are_another_example(model):
    memory, teacher = TeacherMemory(), Asked()
    rows = [{"text": "a b", "text_pair": "c d e", "label": 0}, {"text": "a b c", "text_pair": "d e", "label": 0}]
    for row in rows:
        batch = model.encode([row])
        memory.get_scores(batch, batch.labels, 0, 1, teacher)
    assert teacher.texts == ["a b", "a b c"]


def test_a_checkpoint_holds_it_whatever_its_size(model):
    memory, teacher = TeacherMemory(), Asked()
    batch = make_labeled_batch(model)
    expected = memory.get_scores(batch, batch.labels, 3, 2, teacher)
    state = memory.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    other = TeacherMemory()
    other.load_state_dict(state)
    teacher.texts = []
    assert torch.equal(other.get_scores(batch, batch.labels, 4, 2, teacher), expected)
    assert teacher.texts == []
    assert other.size == memory.size
    empty = TeacherMemory()
    other.load_state_dict(empty.state_dict())
    assert (other.size, other.entries) == (0, {})


def test_it_never_holds_more_than_its_bound_and_forgets_the_oldest(model):
    batch = make_labeled_batch(model)
    counts = batch.content.sum(1).tolist()
    memory, teacher = TeacherMemory(max_size=sum(counts[2:])), Asked()
    memory.get_scores(batch, batch.labels, 0, 9, teacher)
    assert memory.size == sum(counts[2:])
    assert sum(len(scores) for _, scores in memory.entries.values()) == memory.size
    teacher.texts = []
    memory.get_scores(batch, batch.labels, 1, 9, teacher)
    assert teacher.texts == TEXTS[:2]
    small = TeacherMemory(max_size=1)
    assert torch.equal(
        small.get_scores(batch, batch.labels, 0, 9, teacher), small.get_scores(batch, batch.labels, 0, 9, teacher)
    )
    assert small.size <= 1


def test_what_was_said_guides_later_steps_and_evaluation_asks_anew(model):
    batch = make_labeled_batch(model)
    fresh = ExplanationGuidedLoss(expound.explainer("input_x_gradient"))
    kept = replace(fresh, lifetime=2)
    assert fresh.learned is None
    assert kept.learned is kept.memory
    assert "memory" not in kept.params
    modules = {name: TrainingModule(model, [objective]).eval() for name, objective in (("new", fresh), ("old", kept))}
    start = modules["old"](batch, StepContext())["terms"][0].detach()
    torch.testing.assert_close(start, modules["new"](batch, StepContext())["terms"][0].detach())
    before = model.model.classifier.weight.data.clone()
    model.model.classifier.weight.data.copy_(torch.randn_like(before))
    now = modules["new"](batch, StepContext())["terms"][0].detach()
    try:
        assert not torch.isclose(now, start)
        torch.testing.assert_close(modules["old"](batch, StepContext(number=7))["terms"][0].detach(), start)
        torch.testing.assert_close(modules["old"](batch, StepContext(epoch=2))["terms"][0].detach(), now)
        unseen = modules["old"](batch, StepContext(training=False))["terms"][0]
        torch.testing.assert_close(unseen.detach(), now)
    finally:
        model.model.classifier.weight.data.copy_(before)


def test_a_lifetime_below_nothing_is_refused():
    with pytest.raises(ExpoundError, match="at least 0 epochs"):
        ExplanationGuidedLoss(expound.explainer("saliency"), lifetime=-1)
