"""Constrained training: the multiplier, the choice of the epoch, and the contents of checkpoints."""

from __future__ import annotations

import json
import math
import signal
from itertools import pairwise

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

import expound
from expound import ExpoundError
from expound.objectives import Constraint, CrossEntropy, RationaleAlignment
from expound.objectives.constraint import Multiplier, linear_schedule
from expound.recipes import RECIPES
from expound.training import ObjectiveTrainer, fine_tune
from expound.training.loop.callbacks import is_patience_exhausted
from expound.training.loop.training_module import LEARNED_FILE
from runs import ARGUMENTS, bert, difference, load_generated, sentences, trainer, weights
from test_resume import Interrupt


def make_constraint(bound=0.01, explainer="attention_rollout", **options):
    return Constraint(RationaleAlignment(expound.explainer(explainer), scale="position"), bound, **options)


def test_the_multiplier_is_what_torchs_rmsprop_makes_of_it_with_a_linear_schedule():
    """The reference: a parameter, the negated gradient, and projection before each step."""
    total, rate = 40, 0.3
    reference = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.RMSprop([reference], lr=rate, alpha=0.99, eps=1e-8)
    schedule = get_linear_schedule_with_warmup(optimizer, 4, total)
    constrained = make_constraint(bound=0.5, multiplier_learning_rate=rate)
    values = (0.5 + torch.randn(total, generator=torch.Generator().manual_seed(0))).tolist()
    seen = []
    for number, value in enumerate(values):
        with torch.no_grad():
            reference.clamp_(min=0)
        assert constrained.weight == pytest.approx(float(reference.detach()), abs=1e-6)
        seen.append(constrained.weight)
        reference.grad = torch.tensor(-(value - 0.5))
        optimizer.step()
        schedule.step()
        constrained.adapt(value, number, total)
    assert min(seen) >= 0
    assert len(set(seen)) > 20


def test_it_rises_while_violated_and_falls_to_zero_but_never_below():
    multiplier = Multiplier()
    rising = [float(multiplier.value)]
    for _ in range(20):
        multiplier.ascend(0.1, 0.05)
        rising.append(float(multiplier.value))
    assert all(later > earlier for earlier, later in pairwise(rising))
    for _ in range(400):
        multiplier.ascend(-0.1, 0.05)
        assert float(multiplier.value) >= 0
    assert float(multiplier.value) == 0


def test_the_decay_is_that_of_the_reference():
    reference = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.RMSprop([reference], lr=0.05, alpha=0.5682, eps=1e-8)
    multiplier = RECIPES["er_constrained"](multiplier_decay=0.5682).objectives[1].multiplier
    for slope in (0.2, 0.1, -0.3, 0.4):
        reference.grad = torch.tensor(-slope)
        optimizer.step()
        multiplier.ascend(slope, 0.05)
        assert float(multiplier.value) == pytest.approx(float(reference.detach()), abs=1e-6)
    with pytest.raises(ExpoundError, match="decay"):
        RECIPES["er_constrained"](multiplier_decay=1.0)


def test_a_relative_bound_is_of_the_first_step_and_a_bound_that_holds_before_training_is_said(caplog):
    relative = Constraint(RationaleAlignment(), relative_bound=0.5)
    assert math.isnan(relative.bound_in_use)
    assert not relative.is_feasible(0.0)
    for number, value in enumerate((1.6, 0.1)):
        relative.adapt(value, number, None)
    assert relative.bound_in_use == pytest.approx(0.8)
    assert relative.is_feasible(0.87)
    assert not relative.is_feasible(0.89)
    assert "constrains nothing" not in caplog.text
    make_constraint(bound=1.7).adapt(1.6, 0, None)
    assert "the bound 1.7 constrains nothing: rationale_alignment is 1.6 before training" in caplog.text
    spec = "constraint?bound=1&objective=rationale_alignment?distance=kl;explainer=attention_last"
    made = expound.objective(spec)
    assert (made.bound, made.objective.distance, made.objective.explainer.name) == (1.0, "kl", "attention_last")
    assert made.name == "rationale_alignment"


def test_a_term_that_hardly_moves_the_model_is_named_after_the_first_steps(tmp_path, caplog):
    guide = RationaleAlignment(expound.explainer("attention_last"), weight=1e-6)
    loop = trainer(tmp_path, bert(), make_marked_sentences(), objectives=[CrossEntropy(), guide], max_steps=3)
    loop.train()
    assert "rationale_alignment hardly moves the model: in the first steps its gradient is" in caplog.text
    assert "At a weight of" in caplog.text


def test_the_schedule_is_hugging_faces():
    for total in (1, 7, 30):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(0.1 * total), total)
        for number in range(total):
            assert linear_schedule(number, total) == pytest.approx(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()


def test_the_first_feasible_epoch_starts_the_count_anew_with_half_the_patience():
    cases = [
        ([(False, 3), (False, 2), (False, 1)], 2, False),
        ([(False, 1), (False, 2), (False, 2)], 2, True),
        ([(False, 1), (False, 2), (False, 2)], 4, False),
        ([(False, 1), (False, 2), (True, 5), (True, 6)], 4, False),
        ([(False, 1), (False, 2), (True, 5), (True, 6), (True, 5)], 4, True),
        ([(False, 1), (False, 2), (True, 5), (True, 6), (True, 4), (False, 5)], 4, False),
        ([(True, 1), (True, 1)], 1, True),
        ([], 3, False),
    ]
    for evaluations, patience, expected in cases:
        assert is_patience_exhausted(evaluations, patience) == expected


def run(folder, objective, *callbacks, **arguments):
    chosen = {
        "num_train_epochs": 4, "learning_rate": 2e-3, "metric_for_best_model": "feasible_cross_entropy",
        "greater_is_better": False, "save_total_limit": None, "eval_strategy": "epoch", "save_strategy": "epoch",
    }  # fmt: skip
    return fine_tune(
        "tiny", load_generated(size=64), load_generated(split="dev", size=40), folder,
        objectives=[CrossEntropy(), objective], callbacks=callbacks, arguments=ARGUMENTS | chosen | arguments,
    )  # fmt: skip


def test_the_best_epoch_is_the_feasible_one_with_the_lowest_cross_entropy(tmp_path):
    """A dev bound between the losses of a first run makes some epochs feasible; the rule is applied by hand."""
    free = run(tmp_path / "free", make_constraint(bound=0.01, dev_bound=10.0, multiplier_learning_rate=2.0))
    losses = [entry["eval_rationale_alignment"] for entry in free.history if "eval_rationale_alignment" in entry][:-1]
    bound = sorted(losses)[len(losses) // 2] / 1.1 + 1e-9
    result = run(tmp_path / "bound", make_constraint(bound=0.01, dev_bound=bound, multiplier_learning_rate=2.0))
    epochs = [entry for entry in result.history if "eval_cross_entropy" in entry][:-1]
    feasible = [entry for entry in epochs if entry["eval_rationale_alignment"] < 1.1 * bound]
    assert 0 < len(feasible) < len(epochs)
    assert [entry["eval_feasible"] for entry in epochs] == [float(entry in feasible) for entry in epochs]
    best = min(entry["eval_cross_entropy"] for entry in feasible)
    assert result.metrics["cross_entropy"] == pytest.approx(best, abs=1e-6)
    assert result.metrics["feasible"] == 1.0
    assert result.metrics["rationale_alignment"] < 1.1 * bound


def test_a_run_without_a_feasible_epoch_says_so(tmp_path):
    result = run(tmp_path, make_constraint(bound=1e-6))
    assert result.metrics["feasible"] == 0.0
    assert json.loads((tmp_path / "metrics.json").read_text())["feasible_cross_entropy"] is None
    climbed = [
        entry["rationale_alignment_multiplier"] for entry in result.history if "rationale_alignment_multiplier" in entry
    ]
    assert climbed == sorted(climbed)
    assert climbed[0] >= 1.0 < climbed[-1]


def test_the_multiplier_weighs_the_term_and_no_optimizer_of_the_model_knows_it(tmp_path):
    constrained = make_constraint(bound=1e-6, multiplier_learning_rate=5.0)
    loop = trainer(
        tmp_path, bert(), make_marked_sentences(), objectives=[CrossEntropy(), constrained], max_steps=3,
        warmup_steps=0,
    )  # fmt: skip
    loop.train()
    entries = [entry for entry in loop.state.log_history if "loss" in entry]
    before = [1.0, *[entry["rationale_alignment_multiplier"] for entry in entries]]
    for entry, multiplier in zip(entries, before, strict=False):
        expected = entry["cross_entropy"] + multiplier * entry["rationale_alignment"]
        assert entry["loss"] == pytest.approx(expected, abs=1e-4)
    assert before[-1] > 1.0
    assert not list(constrained.multiplier.parameters())


def make_marked_sentences(count=16):
    data = sentences(count)
    return data.add_column("rationale", [[[0, 10]] if i % 3 else None for i in range(count)])


def test_stopped_and_resumed_is_unbroken_with_the_same_multiplier(tmp_path):
    """Dropout on; the same weights, multiplier and state of its optimizer."""
    settings = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3}
    settings |= {"num_train_epochs": 2}
    run(tmp_path / "whole", make_constraint(bound=0.02, multiplier_learning_rate=1.0), **settings)
    stopping = Interrupt(signal.SIGTERM, 5)
    stopped = run(tmp_path / "run", make_constraint(bound=0.02, multiplier_learning_rate=1.0), stopping, **settings)
    assert (stopped.steps, stopped.finished) == (5, False)
    resumed = run(tmp_path / "run", make_constraint(bound=0.02, multiplier_learning_rate=1.0), **settings)
    assert resumed.finished
    assert difference(weights(tmp_path / "whole"), weights(tmp_path / "run")) == 0.0
    kept = [load_learned_weights(tmp_path / name) for name in ("whole", "run")]
    assert kept[0].keys() == {f"rationale_alignment.{name}" for name in ("value", "square", "first")}
    assert difference(*kept) == 0.0
    assert float(kept[0]["rationale_alignment.value"]) != 1.0


def load_learned_weights(folder):
    from safetensors.torch import load_file

    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return load_file(newest / LEARNED_FILE)


def test_bad_bounds_are_refused():
    with pytest.raises(ExpoundError, match="bounds above 0"):
        make_constraint(bound=0.0)
    with pytest.raises(ExpoundError, match="multiplier_learning_rate above 0"):
        make_constraint(multiplier_learning_rate=0.0)
    with pytest.raises(ExpoundError, match="cannot be bounded"):
        Constraint(make_constraint(), 0.1)


def test_a_term_without_examples_is_logged_as_zero(tmp_path):
    loop = trainer(tmp_path, bert(), sentences(), objectives=[CrossEntropy(), make_constraint()], max_steps=1)
    loop.train()
    assert loop.state.log_history[0]["rationale_alignment"] == 0.0
    assert isinstance(loop, ObjectiveTrainer)
