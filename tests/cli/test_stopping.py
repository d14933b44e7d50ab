"""A stopped command says in one line which results are saved, and the same command resumes."""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial

import pytest

import families
from expound.cli import main
from expound.training import ObjectiveTrainer
from forks import command, forge

SCALE = "0.02"


def enter_folder(folder):
    os.chdir(folder)
    os.environ["EXPOUND_SCALE"] = SCALE


def stop_when(folder, words, condition, number):
    """Runs a command in the folder, and sends it the signal once the condition holds.

    Returns the exit code, and the lines of its output that say "stopped".
    """
    with forge() as process:
        process.start(command, words, folder / "said", partial(enter_folder, folder))
        end = time.monotonic() + 240
        while not condition() and process.running(0.02) and time.monotonic() < end:
            pass
        process.kill(number)
        code = process.wait()
    lines = (folder / "said").read_text().replace("\r", "\n").splitlines()
    return code, [line for line in lines if "stopped" in line]


def test_a_demo_that_is_interrupted_in_training_resumes(tmp_path, capsys, monkeypatch):
    demo = ("demo", "--methods", "random,saliency", "--limit", "4", "--quiet", "--device", "cpu")
    model = tmp_path / "demo" / "model"
    code, lines = stop_when(tmp_path, demo, lambda: any(model.glob("checkpoint-*")), signal.SIGINT)
    assert code == 128 + signal.SIGINT
    (line,) = lines
    assert "resume with the same command" in line
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXPOUND_SCALE", SCALE)
    assert main([*demo]) == 0
    shown = capsys.readouterr()
    assert "\nOn 4 examples, " in shown.out
    assert "report: demo/comparison/report.html" in shown.err.splitlines()
    assert re.fullmatch(r"the demo took \d+ (s|min)", shown.err.splitlines()[-1])


def test_a_comparison_that_is_terminated_says_what_is_kept(tmp_path):
    families.tiny("bert", num_labels=2).save_pretrained(tmp_path / "model")
    families.tokenizer("bert").save_pretrained(tmp_path / "model")
    compare = ("compare", "--model", "model", "--data", "generated", "--limit", "500", "--output-dir", "out")
    words = [*compare, "--methods", "lime,random", "--quiet"]
    code, lines = stop_when(tmp_path, words, lambda: any((tmp_path / "out").rglob("*.parquet")), signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert lines == ["stopped: finished examples are saved in out: resume with the same command and --output-dir out"]


def test_a_teacher_that_is_stopped_is_no_bad_input(tmp_path, monkeypatch, capsys):
    """A training that another one needs ends the command with the code of the signal."""

    def interrupt_step(self, *given, **options):
        signal.raise_signal(signal.SIGTERM)
        return step(self, *given, **options)

    step = ObjectiveTrainer.training_step
    monkeypatch.setattr(ObjectiveTrainer, "training_step", interrupt_step)
    train = ["train", "smat", "--config", "tiny", "--data", "generated?size=32", "--epochs", "1", "--device", "cpu"]
    assert main([*train, "--quiet", "--output-dir", str(tmp_path / "run")]) == 128 + signal.SIGTERM
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "stopped: the teacher's training was stopped: the same call resumes it"


def test_a_signal_that_becomes_an_error_of_pythons_own_is_a_stop_too(monkeypatch, capsys):
    def parse(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise SystemError("AST constructor recursion depth mismatch") from None

    monkeypatch.setattr("expound.cli.app", lambda **_: parse())
    assert main([]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err.startswith("stopped: ")
    monkeypatch.setattr("expound.cli.app", lambda **_: (_ for _ in ()).throw(SystemError("another")))
    with pytest.raises(SystemError, match="another"):
        main([])
