"""A run that was stopped or killed ends at the weights of an unbroken one; torn files are passed over."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from transformers import TrainerCallback

from expound.training import ObjectiveTrainer, fine_tune
from expound.training.loop.run import find_newest_checkpoint
from forks import forge
from runs import ARGUMENTS, difference, load_generated, weights

SCHEDULE = {"num_train_epochs": 3, "learning_rate": 1e-3, "eval_steps": 2, "save_total_limit": None, "logging_steps": 4}
BY_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch"}
STEPS_AN_EPOCH, STEPS = 5, 15


def train(folder, *callbacks, patience=None, size=80, **arguments):
    """Train for three epochs of five steps with dropout, in batches of even length; save every second step."""
    from expound.objectives import CrossEntropy

    return fine_tune(
        "tiny", load_generated(size=size), load_generated(split="dev", size=40), folder, objectives=[CrossEntropy()],
        callbacks=callbacks, early_stopping_patience=patience,
        arguments=ARGUMENTS | SCHEDULE | arguments,
    )  # fmt: skip


class Interrupt(TrainerCallback):
    """Sends a signal in the middle of a step."""

    def __init__(self, number, step):
        self.number, self.step = number, step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step + 1 == self.step:
            signal.raise_signal(self.number)


@pytest.fixture(scope="module")
def unbroken_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    result = train(folder)
    assert result.steps == STEPS
    assert result.model.config.hidden_dropout_prob > 0
    return folder


@pytest.fixture(scope="module")
def unbroken_folder_by_epoch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken-by-epoch")
    train(folder, **BY_EPOCH)
    return folder


def train_until_killed(folder):
    train(folder, Interrupt(signal.SIGKILL, 9))


def test_killed_and_resumed_is_unbroken(unbroken_folder, tmp_path):
    with forge() as process_forge:
        process_forge.start(train_until_killed, tmp_path)
        assert process_forge.wait() == -signal.SIGKILL
    assert find_newest_checkpoint(tmp_path).name == "checkpoint-8"
    assert not (tmp_path / "model.safetensors").exists()
    assert train(tmp_path).steps == STEPS
    assert difference(weights(unbroken_folder), weights(tmp_path)) == 0.0


@pytest.mark.parametrize(("strategy", "step"), [("steps", 5), ("steps", 10), ("epoch", 5), ("epoch", 12)])
def test_stopped_by_a_signal_and_resumed_is_unbroken(request, tmp_path, strategy, step):
    """Also when the stop falls on the last step of an epoch, whose evaluation must not be lost."""
    every = BY_EPOCH if strategy == "epoch" else {}
    whole = request.getfixturevalue("unbroken_folder_by_epoch" if strategy == "epoch" else "unbroken_folder")
    number = signal.SIGTERM if step != 12 else signal.SIGINT
    stopped = train(tmp_path / "run", Interrupt(number, step), **every)
    assert not stopped.finished
    assert (stopped.steps, stopped.signal) == (step, number)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    resumed = train(tmp_path / "run", **every)
    assert resumed.finished
    assert difference(weights(whole), weights(tmp_path / "run")) == 0.0
    assert _entries(tmp_path / "run", "eval_loss") == _entries(whole, "eval_loss")
    assert _entries(tmp_path / "run", "loss") == _entries(whole, "loss")
    if strategy == "epoch":
        assert _controls(tmp_path / "run") == _controls(whole)


def test_an_evaluation_before_training_changes_nothing_and_is_made_once(unbroken_folder, tmp_path):
    assert not train(tmp_path, Interrupt(signal.SIGTERM, 3), eval_on_start=True).finished
    assert train(tmp_path, eval_on_start=True).finished
    assert difference(weights(unbroken_folder), weights(tmp_path)) == 0.0
    (first, *rest), whole = _entries(tmp_path, "eval_loss"), _entries(unbroken_folder, "eval_loss")
    assert first[0] == 0
    assert rest == whole


def test_of_one_checkpoint_that_is_kept_a_stop_loses_nothing(tmp_path):
    assert not train(tmp_path, Interrupt(signal.SIGTERM, 13), save_total_limit=1).finished
    best = json.loads((tmp_path / "checkpoint-13" / "trainer_state.json").read_text())["best_global_step"]
    assert {int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")} == {best, 13}
    assert train(tmp_path, save_total_limit=1).finished
    assert len([*tmp_path.glob("checkpoint-*")]) == 1


def _entries(folder, name):
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    history = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    return [(entry["step"], entry[name]) for entry in history if name in entry]


def _controls(folder):
    """Return the trainer's control flags in the checkpoint of each complete epoch."""
    states = [folder / f"checkpoint-{step}" / "trainer_state.json" for step in range(STEPS_AN_EPOCH, STEPS + 1, 5)]
    return [json.loads(path.read_text())["stateful_callbacks"]["TrainerControl"] for path in states]


def _truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


TORN = {
    "no state": lambda path: (path / "trainer_state.json").unlink(),
    "half a state": lambda path: _truncate(path / "trainer_state.json"),
    "half the weights": lambda path: _truncate(path / "model.safetensors"),
    "no weights": lambda path: (path / "model.safetensors").unlink(),
    "half the optimizer": lambda path: _truncate(path / "optimizer.pt"),
    "no random state": lambda path: (path / "scheduler.pt").unlink(),
}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_checkpoint_is_passed_over_with_a_warning(unbroken_folder, tmp_path, how, caplog):
    for step in (8, 10, 12):
        shutil.copytree(unbroken_folder / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    assert find_newest_checkpoint(tmp_path).name == "checkpoint-12"
    TORN[how](tmp_path / "checkpoint-12")
    assert find_newest_checkpoint(tmp_path).name == "checkpoint-10"
    assert "checkpoint-12 is not complete" in caplog.text


def test_a_run_with_a_torn_checkpoint_resumes_from_the_one_before_and_ends_at_the_same_weights(
    unbroken_folder, tmp_path
):
    train(tmp_path, Interrupt(signal.SIGTERM, 7))
    assert find_newest_checkpoint(tmp_path).name == "checkpoint-7"
    _truncate(tmp_path / "checkpoint-7" / "model.safetensors")
    train(tmp_path)
    assert difference(weights(unbroken_folder), weights(tmp_path)) == 0.0


def test_the_patience_of_early_stopping_outlives_a_stop(tmp_path):
    """Nothing improves after the first evaluation at step 2; the third one, at 6, ends the patience of two."""
    still = {"patience": 2, "size": 32, "learning_rate": 1e-12, "num_train_epochs": 8} | BY_EPOCH
    assert train(tmp_path / "whole", **still).steps == 6
    assert not train(tmp_path / "run", Interrupt(signal.SIGTERM, 5), **still).finished
    assert train(tmp_path / "run", **still).steps == 6
    assert not train(tmp_path / "end", Interrupt(signal.SIGTERM, 6), **still).finished
    ended = train(tmp_path / "end", **still)
    assert (ended.steps, ended.finished) == (6, True)
    assert _entries(tmp_path / "end", "eval_loss") == _entries(tmp_path / "whole", "eval_loss")
    assert difference(weights(tmp_path / "end"), weights(tmp_path / "whole")) == 0.0


def test_terms_logged_once_per_epoch_do_not_depend_on_where_the_run_was_interrupted(tmp_path):
    rarely = {"size": 32, "logging_strategy": "epoch"} | BY_EPOCH
    logged = []
    for name, callbacks in (("whole", []), ("run", [Interrupt(signal.SIGTERM, 3)])):
        result = train(tmp_path / name, *callbacks, **rarely)
        result = result if result.finished else train(tmp_path / name, **rarely)
        logged.append([entry["cross_entropy"] for entry in result.history if "cross_entropy" in entry])
    assert len(logged[0]) == 3
    assert logged[0] == logged[1]


def test_the_tokenizer_of_a_run_that_resumes_after_its_last_evaluation_is_that_of_an_unbroken_one(
    tmp_path, monkeypatch
):
    def kill(self):
        raise KeyboardInterrupt

    arguments = {"eval_steps": STEPS // 3}
    with monkeypatch.context() as patched:
        patched.setattr(ObjectiveTrainer, "evaluate_finished", kill)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "killed", **arguments)
    train(tmp_path / "killed", **arguments)
    train(tmp_path / "whole", **arguments)
    resumed, whole = ((tmp_path / name / "tokenizer.json").read_text() for name in ("killed", "whole"))
    assert resumed == whole
    assert json.loads(whole)["truncation"] is None
