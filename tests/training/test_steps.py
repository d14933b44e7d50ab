"""One step of the loop: its loss, its gradient, what it logs, and what makes it stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn

import families
from expound import ExpoundError, explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import Batch, Capture, ExplainedModel
from expound.objectives import (
    OBJECTIVES,
    CrossEntropy,
    ExplanationGuidedLoss,
    GradientPenalty,
    Objective,
    RationaleAlignment,
    StepContext,
    SufficiencyLoss,
    VirtualAdversarialLoss,
    task_losses,
)
from expound.training.loop.data import shuffle_by_length, sort_longest_first, text_lengths
from expound.training.loop.training_module import TrainingModule
from runs import answers, bert, difference, load_generated, sentences, trainer

TEXTS = families.examples("bert")


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        ([0, 2, 1, 0, 2], {}),
        ([0.5, -1.0, 2.0, 0.0, 3.5], {"num_labels": 1}),
        (torch.eye(3)[[0, 1, 2, 0, 0]].tolist(), {"problem_type": "multi_label_classification"}),
    ],
)
def test_the_loss_is_the_one_of_the_hugging_face_model(labels, settings):
    model = bert(**settings)
    batch = model.encode(TEXTS)
    batch = Batch(**{**vars(batch), "labels": torch.tensor(labels)})
    expected = model.model(**batch.inputs, labels=batch.labels).loss
    losses, counted = task_losses(model, batch, model(batch).logits)
    assert counted.all()
    torch.testing.assert_close(losses.mean(), expected)


def test_the_loss_of_spans_is_the_one_of_the_hugging_face_model_and_skips_answers_that_were_cut_off():
    model = ExplainedModel(families.tiny("bert", "QuestionAnswering", num_labels=2), families.tokenizer("bert"))
    batch = model.encode([("what is great", text) for text in TEXTS])
    labels = torch.tensor([[2, 3], [0, 0], [-1, -1], [4, 6], [5, 5]])
    batch = Batch(**{**vars(batch), "labels": labels})
    losses, counted = task_losses(model, batch, model(batch).logits)
    for row in (0, 1, 3, 4):
        one = model.encode([("what is great", TEXTS[row])]).inputs
        where = {"start_positions": labels[row : row + 1, 0], "end_positions": labels[row : row + 1, 1]}
        torch.testing.assert_close(losses[row], model.model(**one, **where).loss)
    assert counted.tolist() == [True, True, False, True, True]
    output = TrainingModule(model, [CrossEntropy()])(batch, StepContext())
    torch.testing.assert_close(output["terms"][0], losses[counted].mean())


def test_accumulated_parts_are_the_whole_batch(tmp_path):
    """The second step has 6 of the 14 rows, in parts of 4 and 2; the smaller part has the smaller share."""
    data = sentences(14)
    kinds = {}
    for name, size, parts in (("whole", 8, 1), ("parts", 4, 2)):
        model = bert()
        loop = trainer(
            tmp_path / name, model, data, per_device_train_batch_size=size, gradient_accumulation_steps=parts,
            train_sampling_strategy="group_by_length", num_train_epochs=2, optim="sgd", learning_rate=0.1,
            max_grad_norm=0.0,
        )  # fmt: skip
        loop.train()
        losses = [entry["loss"] for entry in loop.state.log_history if "loss" in entry]
        kinds[name] = losses, {key: value.clone() for key, value in model.model.state_dict().items()}
    start = bert().model.state_dict()
    np.testing.assert_allclose(kinds["whole"][0], kinds["parts"][0], rtol=0, atol=1e-6)
    assert difference(kinds["whole"][1], kinds["parts"][1]) < 1e-6
    assert difference(kinds["whole"][1], start) > 1e-3


def test_accumulated_parts_and_small_batches_of_dev_are_the_whole_also_where_answers_are_cut_off(tmp_path):
    """Five of eight contexts are so long that their answer is cut off: parts hold two usable labels or none."""
    rows = [dict(row) for row in answers(8)]
    before = " ".join(["the house is big and"] * 9) + " "
    for row in rows[:5]:
        row["text_pair"] = before + row["text_pair"]
        row["answer"] = [[start + len(before), end + len(before)] for start, end in row["answer"]]
    data = Dataset.from_list(rows, features=answers(8).features)
    teacher = explainer("input_x_gradient")
    found = []
    for size, parts in ((8, 1), (2, 4)):
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        hugging = families.tiny("bert", "QuestionAnswering", num_labels=2, **quiet)
        model = ExplainedModel(hugging, families.tokenizer("bert"), max_length=32)
        loop = trainer(
            tmp_path / str(size), model, data, per_device_train_batch_size=size, gradient_accumulation_steps=parts,
            per_device_eval_batch_size=size, num_train_epochs=2, optim="sgd", learning_rate=0.1, max_grad_norm=0.0,
            objectives=[CrossEntropy(), GradientPenalty(0.5), ExplanationGuidedLoss(teacher, weight=0.5)],
        )  # fmt: skip
        loop.train()
        entries = [*loop.state.log_history[:-1], loop.evaluate()]
        names = [f"{prefix}{name}" for prefix in ("", "eval_") for name in (*OBJECTIVES, "loss")]
        found.append([entry[name] for entry in entries for name in names if name in entry])
    assert len(found[0]) == 3 * 4
    np.testing.assert_allclose(*found, rtol=1e-5)


@dataclass(frozen=True)
class Shift(Objective):
    """Pulls a learned number to the mean of the embeddings' gradient norms, times noise that depends on the context."""

    weight: float = 0.5
    module: nn.Module = field(default_factory=lambda: nn.Linear(1, 1), repr=False)
    name: ClassVar[str] = "shift"

    @property
    def capture(self):
        return Capture(embeddings=True, differentiable_twice=True)

    @property
    def learned(self):
        return self.module

    def __call__(self, step):
        (gradient,) = torch.autograd.grad(step.task_losses.sum(), step.embeddings, create_graph=True)
        noise = torch.rand((), generator=step.generator("noise"))
        return (self.module(noise.view(1, 1)) - gradient.norm()).square().sum()


def test_objectives_are_weighted_logged_under_their_names_and_what_they_learn_is_trained_and_saved(tmp_path):
    objective, model = Shift(), bert()
    before = objective.module.weight.clone()
    loop = trainer(tmp_path, model, sentences(), objectives=[CrossEntropy(2.0), objective], max_steps=2)
    loop.train()
    first = loop.state.log_history[0]
    assert first["loss"] == pytest.approx(2 * first["cross_entropy"] + 0.5 * first["shift"], abs=1e-6)
    assert not torch.equal(objective.module.weight, before)
    figures = loop.evaluate()
    assert figures["eval_loss"] == pytest.approx(2 * figures["eval_cross_entropy"] + 0.5 * figures["eval_shift"])
    loop.save_model(str(tmp_path / "saved"))
    again, other = Shift(), bert(seed=3)
    back = trainer(tmp_path / "b", other, sentences(), objectives=[CrossEntropy(), again])
    back._load_from_checkpoint(str(tmp_path / "saved"))
    assert torch.equal(again.module.weight, objective.module.weight)
    assert difference(other.model.state_dict(), model.model.state_dict()) == 0.0


def test_one_pass_serves_all_objectives(tmp_path):
    model, calls = bert(), []
    model.model.register_forward_hook(lambda *_: calls.append(1))
    loop = trainer(tmp_path, model, sentences(), objectives=[CrossEntropy(), Shift()], max_steps=1)
    loop.train()
    assert len(calls) == 1


@dataclass(frozen=True)
class Broken(Objective):
    """Not a number from the third step on."""

    weight: float = 1.0
    name: ClassVar[str] = "broken"

    def __call__(self, step):
        return step.task_losses.sum() * (float("nan") if step.context.number == 2 else 0.0)


@dataclass(frozen=True)
class Kink(Objective):
    """A finite loss whose gradient is not: the square root at 0."""

    weight: float = 1.0
    name: ClassVar[str] = "kink"

    def __call__(self, step):
        return (step.task_losses.sum() * 0.0).sqrt()


@pytest.mark.parametrize(("objective", "what", "last"), [(Broken(), "broken is", 2), (Kink(), "the gradient is", 0)])
def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights_change(tmp_path, objective, what, last):
    model = bert()
    loop = trainer(
        tmp_path, model, sentences(), objectives=[CrossEntropy(), objective], max_steps=4, save_strategy="steps",
        save_steps=1, learning_rate=1e-3,
    )  # fmt: skip
    with pytest.raises(ExpoundError, match=f"{what} not a finite number at step {last + 1}"):
        loop.train()
    assert all(torch.isfinite(value).all() for value in model.model.state_dict().values())
    assert (tmp_path / "checkpoint-2").is_dir() == (last == 2)


def test_a_moment_draws_the_same_numbers_again_and_every_other_moment_others():
    moments = [
        StepContext(),
        StepContext(seed=1),
        StepContext(number=1),
        StepContext(rank=1),
        StepContext(part=1),
        StepContext(training=False),
    ]
    drawn = [float(torch.rand((), generator=context.generator("a"))) for context in moments]
    drawn.append(float(torch.rand((), generator=StepContext().generator("b"))))
    assert len(set(drawn)) == len(drawn)
    assert drawn[0] == float(torch.rand((), generator=StepContext().generator("a")))


def test_an_epoch_sees_every_row_once_in_another_order_with_less_padding():
    data = sentences(200)
    sizes = text_lengths(data)
    orders = [shuffle_by_length(sizes, 8, seed=0, epoch=epoch) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(200)) for order in orders)
    assert orders[0] != orders[1]
    assert orders[0] == shuffle_by_length(sizes, 8, seed=0, epoch=0)

    def compute_padded_length(order):
        return sum(8 * max(sizes[row] for row in order[i : i + 8]) for i in range(0, 200, 8))

    assert compute_padded_length(orders[0]) < 0.8 * compute_padded_length(
        np.random.default_rng(0).permutation(200).tolist()
    )
    assert [sizes[row] for row in sort_longest_first(sizes)] == sorted(sizes, reverse=True)


def test_two_objectives_of_one_name_are_refused():
    with pytest.raises(ExpoundError, match="different names"):
        TrainingModule(bert(), [CrossEntropy(), CrossEntropy(2.0)])


def test_label_smoothing_is_refused_rather_than_ignored(tmp_path):
    with pytest.raises(ExpoundError, match="label smoothing"):
        trainer(tmp_path, bert(), sentences(), label_smoothing_factor=0.1)


@pytest.mark.parametrize(
    "kind",
    [
        GradientPenalty,
        lambda: ExplanationGuidedLoss(explainer("input_x_gradient")),
        lambda: RationaleAlignment(explainer("attention_rollout")),
        lambda: RationaleAlignment(explainer("input_x_gradient")),
        lambda: RationaleAlignment(explainer("alti")),
        VirtualAdversarialLoss,
        lambda: SufficiencyLoss(InterpretableAttention.for_model(bert())),
    ],
)
def test_with_gradient_checkpointing_a_step_is_the_same(kind, tmp_path):
    data, found = load_generated(size=8), []
    for checkpointing in (True, False):
        model = bert(num_labels=2)
        parts = {"objectives": [CrossEntropy(), kind()], "gradient_checkpointing": checkpointing, "max_steps": 1}
        loop = trainer(tmp_path, model, data, **parts)
        loop.train()
        found.append(loop.state.log_history[0]["grad_norm"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
