"""Students of a frozen teacher, and a teacher's explainer that learns from the students' results."""

from __future__ import annotations

import functools
import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from safetensors.torch import load_file

import expound
import families
from expound import ExpoundError
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.metrics.simulatability import simulatability
from expound.models import Capture, ExplainedModel
from expound.objectives import TrainingStep
from expound.training import ObjectiveTrainer, RunOptions
from expound.training.bilevel.lookahead import Student, make_inner_optimizer
from expound.training.bilevel.scaffold import (
    GOLD,
    OuterStep,
    ScaffoldModule,
    TeacherBatch,
    TeacherExplainer,
    encode_batches,
    get_teacher_predictions,
    label_by_teacher,
    make_static_explainer,
    normalize_scores,
    predict_dataset,
    teacher_outputs,
)
from expound.training.bilevel.students import (
    Teaching,
    _compute_explanations,
    _compute_head_logits,
    evaluate_student,
)
from expound.training.loop.run import find_newest_checkpoint
from expound.training.loop.training_module import LEARNED_FILE
from runs import ARGUMENTS, difference, sentences, weights
from runs import answers as questions
from small import shared
from test_resume import Interrupt
from unrolled import UnrolledStep

SCHEDULE = {
    "num_train_epochs": 1, "learning_rate": 0.3, "optim": "sgd", "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 4, "max_grad_norm": 5.0, "metric_for_best_model": "simulatability",
}  # fmt: skip


def teacher_of(family="bert", **changes):
    """A random teacher whose answers differ from row to row."""
    model = families.tiny(family, **({"seed": 3, "initializer_range": 0.4} | changes))
    return ExplainedModel(model, families.processor(family))


def config(family="bert", **changes):
    """Return the configuration of a student that is trained from scratch."""
    return families.tiny(family, **changes).config


def values(count=12):
    rows = {"text": sentences(count)["text"][:], "label": [float(i % 5) for i in range(count)]}
    return Dataset.from_dict(rows, features=Features({"text": Value("string"), "label": Value("float32")}))


def pictures(count=12):
    rows = {"image": families.examples("vit", count), "label": [i % 3 for i in range(count)]}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "label": ClassLabel(names=["a", "b", "c"])}))


def train_student(folder, teaching, data=None, dev=None, model=None, **options):
    data = sentences(16) if data is None else data
    settings = ARGUMENTS | SCHEDULE | options.pop("arguments", {})
    chosen = RunOptions(arguments=settings, **options)
    return teaching.train_student(
        config() if model is None else model, data, data if dev is None else dev, folder, chosen
    )


TWO_EPOCHS = {"num_train_epochs": 2}
TASKS = {
    "text": lambda: (teacher_of(), sentences(12), config()),
    "decoder": lambda: (teacher_of("gpt2"), sentences(12), config("gpt2")),
    "image": lambda: (teacher_of("vit"), pictures(), config("vit")),
    "regression": lambda: (teacher_of(num_labels=1, problem_type="regression"), values(), config()),
    "span": lambda: (
        ExplainedModel(families.tiny("bert", "QuestionAnswering", num_labels=2, seed=3), families.tokenizer("bert")),
        questions(12),
        config(num_labels=2),
    ),
}


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_has_students_and_a_teacher_that_learns(kind, tmp_path):
    teacher, data, model = TASKS[kind]()
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    result = train_student(tmp_path / "run", Teaching(teacher, rate=0.05), data, model=model)
    predicted = predict_dataset(result.model, label_by_teacher(teacher, data))
    own = label_by_teacher(teacher, data)
    if kind == "regression":
        expected = np.corrcoef(predicted[:, 0], own["label"][:])[0, 1]
    elif kind == "span":
        said = [tuple(spans[0]) if spans else (0, 0) for spans in own["answer"][:]]
        expected = np.mean([tuple(map(int, pair)) == gold for pair, gold in zip(predicted, said, strict=True)])
    else:
        expected = np.mean(predicted.argmax(-1) == np.array(own["label"][:]))
    assert result.metrics["simulatability"] == pytest.approx(expected, abs=1e-6)
    found = ParameterizedAttention.from_pretrained(tmp_path / "run" / "teacher_explainer")
    start = ParameterizedAttention.for_model(teacher)
    assert (found.coefficients - start.coefficients).abs().max() > 1e-3
    assert all(torch.equal(value, before[name]) for name, value in teacher.model.state_dict().items())
    spec = f"parameterized_attention:{tmp_path / 'run' / 'teacher_explainer'}"
    assert expound.attribute(teacher, list(data.select(range(2))), spec)[0].scores.any()


def test_with_an_outer_rate_of_zero_it_is_the_static_explainer_to_the_last_bit(tmp_path):
    """Dropout on: the lookahead step uses up no random number of the student's."""
    teacher, model = teacher_of(), config(hidden_dropout_prob=0.1)
    train_student(tmp_path / "still", Teaching(teacher, rate=0.0), model=model)
    train_student(tmp_path / "static", Teaching(teacher, "untrained"), model=model)
    train_student(tmp_path / "moved", Teaching(teacher, rate=0.1), model=model)
    still, fixed, moved = (weights(tmp_path / name) for name in ("still", "static", "moved"))
    assert difference(still, fixed) == 0.0
    assert difference(still, moved) > 1e-6
    found = ParameterizedAttention.from_pretrained(tmp_path / "still" / "teacher_explainer")
    assert torch.equal(found.coefficients, torch.full((2, 4), 1 / 8))


def test_without_a_lookahead_step_the_outer_step_uses_the_students_own_gradients(tmp_path, monkeypatch):
    """Every outer gradient is that of a lookahead from where the student is before its step, drawn alike."""
    teacher, found, expected = teacher_of(), [], []
    steps = {"arguments": {"max_steps": 3}, "model": config(hidden_dropout_prob=0.1)}

    def watch(self, number):
        scaffold, module = self.scaffolding.scaffold, self.module
        held_out = self.held_out_batch(int(scaffold.teacher.count))
        own = Student(module.explained, scaffold.student, self.scaffolding.weight)
        update = make_inner_optimizer(self.trainer.optimizer, own.trainable_weights())
        lookahead = UnrolledStep(own, update, self.trainer.args.max_grad_norm)
        with scaffold.teacher.requiring_gradients() as coefficients:
            said = self.scaffolding.explain_rows(module.rows, module.teacher_batch.attended)
            slope, _ = lookahead.gradient(module.teacher_batch, said, held_out, self.seed("student"))
            expected.append(torch.autograd.grad(said, coefficients, slope.to(said))[0])
        take(self, number)

    step, take = TeacherExplainer.step, OuterStep.take
    monkeypatch.setattr(
        TeacherExplainer, "step", lambda self, slope, *rest: (found.append(slope), step(self, slope, *rest))
    )
    monkeypatch.setattr(OuterStep, "take", watch)
    train_student(tmp_path / "run", Teaching(teacher, rate=0.05, lookahead=False), **steps)
    assert len(found) == 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("lookahead", [True, False])
def test_in_mixed_precision_the_explainers_step_is_mixed_as_well(lookahead, tmp_path, monkeypatch):
    seen = []
    original_simulation = Student.simulation

    def record_autocast(self, batch):
        seen.append(torch.is_autocast_enabled("cpu"))
        return original_simulation(self, batch)

    monkeypatch.setattr(Student, "simulation", record_autocast)
    steps = {"arguments": {"max_steps": 2, "bf16": True}, "model": config(hidden_dropout_prob=0.1)}
    assert train_student(tmp_path, Teaching(teacher_of(), rate=0.05, lookahead=lookahead), **steps).finished
    assert seen == [True, True]


LEARNED = {
    "scaffolding.student.coefficients",
    *(f"scaffolding.teacher.{name}" for name in ("explainer.coefficients", "mean", "square", "count")),
}


def train_two_epochs(folder, lookahead, callbacks=()):
    """Train for eight steps with dropout: an outer step after every second one, a checkpoint after every fourth."""
    teaching = Teaching(teacher_of(), rate=0.05, interval=2, lookahead=lookahead)
    arguments = TWO_EPOCHS | {"eval_steps": 4}
    model = config(hidden_dropout_prob=0.1)
    return train_student(folder, teaching, arguments=arguments, model=model, callbacks=callbacks)


@pytest.fixture(scope="module")
def unbroken_folder(tmp_path_factory):
    """A function that returns the folder of an uninterrupted run with or without a lookahead step."""
    return functools.cache(
        lambda lookahead: train_two_epochs(tmp_path_factory.mktemp("unbroken"), lookahead).output_dir
    )


@pytest.mark.parametrize(("step", "lookahead"), [(5, True), (4, False)])
def test_stopped_and_resumed_is_unbroken_with_both_explainers_and_their_moments(
    step, lookahead, unbroken_folder, tmp_path
):
    """Step 4 ends an epoch; step 5 lies between two outer steps."""
    assert not train_two_epochs(tmp_path, lookahead, [Interrupt(signal.SIGTERM, step)]).finished
    assert train_two_epochs(tmp_path, lookahead).finished
    assert difference(weights(unbroken_folder(lookahead)), weights(tmp_path)) == 0.0
    assert difference(_load_learned_weights(unbroken_folder(lookahead)), _load_learned_weights(tmp_path)) == 0.0
    assert _load_learned_weights(tmp_path).keys() == LEARNED


def test_after_a_crash_between_checkpoints_it_resumes_to_the_same_weights(unbroken_folder, tmp_path, monkeypatch):
    """Three steps and an outer step are lost; nothing was written on the way out."""

    def crash(self, number):
        take(self, number)
        if number == 7:
            raise ConnectionError

    take = OuterStep.take
    with monkeypatch.context() as patched:
        patched.setattr(OuterStep, "take", crash)
        with pytest.raises(ConnectionError):
            train_two_epochs(tmp_path, True)
    assert find_newest_checkpoint(tmp_path).name == "checkpoint-4"
    assert train_two_epochs(tmp_path, True).finished
    assert difference(weights(unbroken_folder(True)), weights(tmp_path)) == 0.0
    assert difference(_load_learned_weights(unbroken_folder(True)), _load_learned_weights(tmp_path)) == 0.0


def _load_learned_weights(folder):
    return load_file(folder / LEARNED_FILE)


def test_the_teacher_is_asked_once_and_its_kept_explanations_are_its_own(tmp_path):
    teacher, data = teacher_of(), sentences(12)
    passes = []
    hook = teacher.model.register_forward_pre_hook(lambda *_: passes.append(1))
    terms, own = Teaching(teacher).make_objectives(label_by_teacher(teacher, data)), label_by_teacher(teacher, data)
    before = len(passes)
    assert before == 3
    Teaching(teacher).run(config(), own, own, tmp_path / "run", RunOptions(arguments=ARGUMENTS | SCHEDULE), terms)
    hook.remove()
    assert len(passes) == before


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
@pytest.mark.parametrize("name", ["untrained", "untrained_last", "input_x_gradient", "attention_all"])
def test_what_is_kept_is_what_the_explainer_says_of_another_batch(family, name):
    """Other padding, other neighbors, padding on the left in decoders."""
    teacher = shared(family, dtype=torch.float32)
    data = pictures(6) if family == "vit" else sentences(6)
    method = make_static_explainer(name, teacher)
    kept = teacher_outputs(teacher, data, lambda batch: _compute_explanations(teacher, method, batch))
    batch = teacher.encode([data[row] for row in (5, 0, 3)])
    found = kept.read(torch.tensor([5, 0, 3]), batch.attended)[:, 0]
    expected = normalize_scores(
        method, method.explain(teacher, batch, special_tokens=True).scores.detach(), batch.attended
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found[~batch.attended] == 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(3))


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
def test_kept_head_logits_mix_to_what_the_explainer_says(family):
    teacher = shared(family, dtype=torch.float32)
    data = pictures(5) if family == "vit" else sentences(5)
    explainer = ParameterizedAttention.for_model(teacher)
    with torch.no_grad():
        explainer.coefficients.copy_(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    kept = teacher_outputs(teacher, data, lambda batch: _compute_head_logits(teacher, explainer, batch))
    batch = teacher.encode([data[row] for row in (4, 1)])
    mixed = explainer.mix_heads(kept.read(torch.tensor([4, 1]), batch.attended).unflatten(1, (2, 4)), batch.attended)
    torch.testing.assert_close(
        mixed, explainer.explain(teacher, batch, special_tokens=True).scores, rtol=1e-4, atol=1e-5
    )


def test_normalized_scores_by_hand():
    attended = torch.tensor([[True, True, False], [True, True, True]])
    scores = torch.tensor([[0.1, 0.2, 9.0], [0.0, 0.0, 0.0]])
    signed = normalize_scores(expound.explainer("input_x_gradient"), scores, attended)
    first = np.exp(1.0) / (np.exp(1.0) + np.exp(2.0))
    torch.testing.assert_close(signed[0], torch.tensor([first, 1 - first, 0.0], dtype=torch.float32))
    half = normalize_scores(expound.explainer("integrated_gradients"), scores, attended)
    torch.testing.assert_close(half[0, 1] / half[0, 0], torch.tensor(np.exp(0.2), dtype=torch.float32))
    shares = normalize_scores(expound.explainer("attention_all"), scores, attended)
    torch.testing.assert_close(shares, torch.tensor([[1 / 3, 2 / 3, 0.0], [1 / 3, 1 / 3, 1 / 3]]))


def test_static_integrated_gradients_have_ten_points_from_zero_unless_told_otherwise():
    teacher = shared("bert")
    usual = make_static_explainer("integrated_gradients", teacher).params
    assert (usual["n_steps"], usual["baselines"]) == (10, "zero")
    assert make_static_explainer("integrated_gradients?n_steps=7", teacher).params["n_steps"] == 7


def test_the_outer_optimizer_is_torchs_adamw_on_a_clipped_gradient():
    explainer = ParameterizedAttention(2, 4)
    reference = torch.nn.Parameter(explainer.coefficients.detach().clone())
    optimizer = torch.optim.AdamW([reference], lr=0.02, weight_decay=0.0)
    teacher, generator = TeacherExplainer(explainer), torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient = 3 * torch.randn(2, 4, generator=generator)
        reference.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([reference], 5.0)
        optimizer.step()
        teacher.step(gradient, 0.02, 5.0)
        torch.testing.assert_close(explainer.coefficients, reference.detach(), rtol=1e-5, atol=1e-6)
    assert not explainer.coefficients.requires_grad


def test_held_out_batches_go_through_all_dev_data_in_a_new_order_each_time(tmp_path):
    teacher, data = teacher_of(), sentences(13)
    own = label_by_teacher(teacher, data)
    from transformers import TrainingArguments

    args = TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=4, report_to="none", use_cpu=True)
    student = ExplainedModel(families.tiny("bert"), teacher.processing_class)
    module = ScaffoldModule(student, Teaching(teacher).make_objectives(own))
    loop = OuterStep(ObjectiveTrainer(module, args, train_dataset=own, eval_dataset=own), module, module.scaffolding)
    epochs = [[ids for part in range(3) for ids in _ids(loop.held_out_batch(3 * epoch + part))] for epoch in range(3)]
    everything = Counter(_ids(teacher.encode(list(data))))
    for epoch in epochs:
        assert sum((everything - Counter(epoch)).values()) == 1
        assert not Counter(epoch) - everything
    assert epochs[0] != epochs[1] != epochs[2]
    assert _ids(loop.held_out_batch(4)) == _ids(loop.held_out_batch(4))


def _ids(batch):
    return [tuple(ids[real].tolist()) for ids, real in zip(batch.inputs["input_ids"], batch.attended, strict=True)]


def test_labels_of_taught_data_are_the_teachers_and_gold_ones_are_numbered_as_its_outputs():
    model = families.tiny("bert", num_labels=2, seed=3)
    model.config.id2label = {0: "POSITIVE", 1: "NEGATIVE"}
    teacher = ExplainedModel(model, families.tokenizer("bert"))
    types = Features({"text": Value("string"), "label": ClassLabel(names=["negative", "positive"])})
    data = Dataset.from_dict({"text": sentences(4)["text"][:], "label": [0, 1, 1, 0]}, features=types)
    own = label_by_teacher(teacher, data)
    assert own[GOLD][:] == [1, 0, 0, 1]
    assert own["label"][:] == teacher.predict(teacher.encode(list(data))).tolist()
    assert get_teacher_predictions(own).tolist() == own["label"][:]
    assert label_by_teacher(teacher, data.remove_columns("label"))["label"][:] == own["label"][:]


def test_a_student_with_another_vocabulary_is_refused_unless_it_learns_no_explanations(tmp_path):
    teacher = teacher_of()
    other = {"model": config("gpt2"), "processing_class": families.tokenizer("gpt2")}
    with pytest.raises(ExpoundError, match="different vocabularies"):
        train_student(tmp_path / "run", Teaching(teacher), **other)
    assert train_student(tmp_path / "none", Teaching(teacher, "none"), **other).finished


def test_a_student_with_other_heads_and_layers_learns(tmp_path):
    small = config(num_hidden_layers=1, num_attention_heads=2)
    assert train_student(tmp_path / "run", Teaching(teacher_of()), model=small).finished
    own = ParameterizedAttention.from_pretrained(tmp_path / "run" / "student_explainer")
    assert (own.n_layers, own.n_heads) == (1, 2)


def test_a_student_that_cuts_texts_earlier_has_a_teacher_that_does_too(tmp_path):
    result = train_student(tmp_path / "run", Teaching(teacher_of()), max_length=12)
    assert result.finished


def test_a_regression_teacher_with_constant_output_is_refused(tmp_path):
    teacher = teacher_of(num_labels=1, problem_type="regression")
    with torch.no_grad():
        teacher.model.classifier.weight.zero_()
    with pytest.raises(ExpoundError, match="the same value"):
        train_student(tmp_path, Teaching(teacher), values())


def test_a_teacher_that_knows_one_class_only_has_students_that_agree(tmp_path):
    teacher = teacher_of()
    with torch.no_grad():
        teacher.model.classifier.bias[1] += 100
    result = train_student(tmp_path, Teaching(teacher, rate=0.05), arguments=TWO_EPOCHS)
    assert result.metrics["simulatability"] == 1.0


def test_a_student_that_sees_one_class_only_is_judged_on_all_of_them(tmp_path):
    teacher, data = teacher_of(), sentences(24)
    said = np.array(label_by_teacher(teacher, data)["label"][:])
    first = data.select(np.flatnonzero(said == said[0]))
    assert 0 < len(first) < len(data)
    result = train_student(tmp_path, Teaching(teacher, rate=0.05), first, data, arguments=TWO_EPOCHS)
    assert result.model.config.num_labels == 3
    assert result.metrics["simulatability"] == pytest.approx((said == said[0]).mean())


def test_the_loss_is_the_sum_of_the_answers_and_beta_times_the_explanations(tmp_path):
    result = train_student(tmp_path, Teaching(teacher_of(), weight=3.0, rate=0.05))
    logged = [entry for entry in result.history if "loss" in entry]
    assert logged
    for entry in logged:
        assert entry["scaffolding"] > 0
        assert entry["loss"] == pytest.approx(entry["cross_entropy"] + 3.0 * entry["scaffolding"], abs=1e-4)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_a_student_that_is_its_teacher_learns_nothing_from_explanations(special_tokens, tmp_path):
    """Special tokens have a score in the student's explanation if they have one in the teacher's."""
    teacher = teacher_of()
    method = InterpretableAttention.for_model(teacher, normalizer="softmax", special_tokens=special_tokens)
    method.save_pretrained(tmp_path)
    data = label_by_teacher(teacher, sentences(4))
    scaffolding = Teaching(teacher, f"interpretable_attention:{tmp_path}").make_objectives(data)[1].prepare(teacher)
    batch = teacher.encode(list(data))
    explained = scaffolding.explain_rows(torch.arange(4), batch.attended)
    assert bool(explained[batch.attended & ~batch.content].any()) == special_tokens
    outputs = teacher(batch, capture=scaffolding.capture)
    step = TrainingStep(teacher, TeacherBatch.from_batch(batch, explained), outputs)
    assert scaffolding(step).abs() < 1e-6
    other = teacher_of(seed=5)
    outputs = other(batch, capture=scaffolding.capture)
    step = TrainingStep(other, step.batch, outputs)
    assert scaffolding(step) > 1e-3


def test_half_steps_and_masked_texts_are_refused(tmp_path):
    with pytest.raises(ExpoundError, match="gradient_accumulation_steps to 1"):
        train_student(tmp_path / "run", Teaching(teacher_of()), arguments={"gradient_accumulation_steps": 2})
    with pytest.raises(ExpoundError, match="masked_share to 0"):
        train_student(tmp_path / "other", Teaching(teacher_of()), masked_share=0.5)


def test_patience_counts_evaluations_beyond_it(tmp_path):
    """No weight moves: the first evaluation is the best one, two more are borne, and the next one ends the training."""
    still = {"learning_rate": 1e-30, "num_train_epochs": 9}
    teaching = Teaching(teacher_of(), "none")
    result = train_student(tmp_path, teaching, sentences(4), arguments=still, early_stopping_patience=2)
    assert [entry["epoch"] for entry in result.history if "eval_simulatability" in entry] == [1, 2, 3, 4]


def test_a_retrained_student_learns_from_the_explainer_held_still(tmp_path):
    train_student(tmp_path / "run", Teaching(teacher_of(), rate=0.1, retrain=True))
    learned = tmp_path / "run-learned" / "teacher_explainer"
    train_student(tmp_path / "by-hand", Teaching(teacher_of(), f"parameterized_attention:{learned}"))
    assert difference(weights(tmp_path / "run"), weights(tmp_path / "by-hand")) == 0.0
    assert difference(weights(tmp_path / "run"), weights(tmp_path / "run-learned")) > 1e-6


def test_a_student_may_explain_itself_as_ivra_does(tmp_path):
    taught = Teaching(teacher_of(), "untrained", weight=1.0, student_explainer="interpretable_attention")
    result = train_student(tmp_path / "run", taught)
    own = InterpretableAttention.from_pretrained(tmp_path / "run" / "student_explainer")
    assert (own.normalizer, own.mix) == ("sparsemax", "literal")
    assert not torch.equal(own.head_coefficients, torch.ones_like(own.head_coefficients))
    assert result.finished
    with pytest.raises(ExpoundError, match="parameterized_attention"):
        train_student(tmp_path / "learned", replace(taught, explainer="learned"))


def test_a_student_that_knows_the_classes_in_another_order_is_compared_by_their_names(tmp_path):
    teacher, data, start = teacher_of(), sentences(12), families.tiny("bert", seed=5, initializer_range=0.4)
    teacher.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    start.config.id2label = {0: "yes", 1: "no", 2: "maybe"}
    still = {"learning_rate": 1e-30}
    options = {"model": start, "arguments": still, "processing_class": teacher.processing_class}
    result = train_student(tmp_path / "run", Teaching(teacher, "none"), data, **options)
    assert result.model.labels == ("yes", "no", "maybe")
    said, own = (
        [model.labels[i] for i in predict_dataset(model, data).argmax(-1)] for model in (teacher, result.model)
    )
    agreed = np.mean([one == other for one, other in zip(said, own, strict=True)])
    right = np.mean([data.features["label"].names[row["label"]] == name for row, name in zip(data, own, strict=True)])
    for figures in (result.metrics, evaluate_student(result.model, label_by_teacher(teacher, data))):
        assert (figures["simulatability"], figures["accuracy"]) == (pytest.approx(agreed), pytest.approx(right))


def test_scores_by_hand():
    assert simulatability("classification", [0, 1, 1, 2], [0, 1, 2, 2]) == 0.75
    assert simulatability("span", [[0, 3], [1, 2]], [[0, 3], [1, 4]]) == 0.5
    assert simulatability("regression", [1.0, 2.0, 4.0], [2.0, 4.0, 8.0]) == pytest.approx(1.0)
    assert np.isnan(simulatability("regression", [1.0, 1.0], [0.0, 2.0]))
    with pytest.raises(ExpoundError, match="classification, regression, span"):
        simulatability("multi_label", [1], [1])
    with pytest.raises(ExpoundError, match="as many predictions"):
        simulatability("classification", [1], [1, 2])


def test_a_teacher_batch_keeps_all_fields_of_its_batch():
    batch = shared("bert").encode(["a film", "a small town"])
    lesson = TeacherBatch.from_batch(batch, torch.ones(batch.attended.shape)).to("cpu")
    assert lesson.teacher_explanation is not None
    assert lesson.alignments == batch.alignments
    assert torch.equal(lesson.inputs["input_ids"], batch.inputs["input_ids"])


def test_batches_of_a_teacher_are_all_its_rows():
    teacher, data = teacher_of(), sentences(9)
    assert sorted(row for rows, _ in encode_batches(teacher, data) for row in rows) == list(range(9))
    assert Capture(heads=True, heads_only=True).needs_own_attention


@pytest.mark.parametrize("lookahead", [True, False])
def test_gradient_checkpointing_changes_no_weight(lookahead, tmp_path):
    """Dropout draws the same numbers, and the lookahead step runs layers again with the weights that it leads to."""
    ends = []
    for number, is_checkpointed in enumerate((False, True)):
        teaching = Teaching(teacher_of(), lookahead=lookahead, rate=0.05)
        arguments = {"gradient_checkpointing": is_checkpointed, "max_steps": 3, "eval_strategy": "no"}
        quiet = {"save_strategy": "no", "load_best_model_at_end": False}
        result = train_student(tmp_path / str(number), teaching, arguments=arguments | quiet)
        explainer = ParameterizedAttention.from_pretrained(tmp_path / str(number) / "teacher_explainer")
        ends.append([*result.model.model.parameters(), explainer.coefficients])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_an_explainer_that_was_trained_anew_in_its_folder_is_another_one(tmp_path):
    teacher, found = teacher_of(), []
    for value in (1.0, 1.0, 2.0):
        saved = ParameterizedAttention.for_model(teacher)
        torch.nn.init.constant_(saved.coefficients[0], value)
        saved.save_pretrained(tmp_path)
        data = label_by_teacher(teacher, sentences(4))
        found.append(Teaching(teacher, f"parameterized_attention:{tmp_path}").make_objectives(data)[1].params)
    assert found[0] == found[1] != found[2]
