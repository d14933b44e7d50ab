"""`expound train baseline` from the command line's point of view."""

from __future__ import annotations

import json
import re

import pytest

import expound
from expound.cli import main
from forks import forge, run_to_end

SMALL = ["--data", "generated?size=48", "--device", "cpu", "--epochs", "1", "--batch-size", "16", "--quiet"]


def test_a_model_from_scratch_is_trained_judged_and_ready_to_load(tmp_path, capsys, caplog):
    folder = tmp_path / "run"
    settings = ["--config", "tiny", "--max-length", "32", "--set", "weight_decay=0.1", "--output-dir", str(folder)]
    assert main(["train", "baseline", *SMALL, *settings]) == 0
    shown = capsys.readouterr()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert f"accuracy: {metrics['accuracy']:.4f}" in shown.out
    (head,) = (line for line in shown.out.splitlines() if line.startswith("dev ("))
    assert re.fullmatch(r"dev \(\d+ rows\), best epoch 1 of 1 by accuracy:", head)
    config = json.loads((folder / "expound_run.json").read_text())["config"]
    assert config["arguments"]["weight_decay"] == 0.1
    assert config["max_length"] == 32
    assert expound.load(folder).max_length > 32
    assert main(["train", "baseline", *SMALL, *settings]) == 0
    assert "nothing to do" in caplog.text
    assert main(["train", "baseline", *SMALL, *settings, "--seed", "1"]) == 2
    assert "another configuration" in capsys.readouterr().err


def test_training_on_a_single_file_says_that_it_is_divided(tmp_path, capsys):
    file = tmp_path / "mine.csv"
    rows = [
        f"a {word} film number {number},{label}" for number in range(30) for word, label in (("good", 1), ("bad", 0))
    ]
    file.write_text("review,label\n" + "\n".join(rows) + "\n")
    words = ["train", "baseline", "--config", "tiny", "--data", str(file), "--output-dir", str(tmp_path / "run")]
    assert main([*words, "--epochs", "1", "--batch-size", "32", "--device", "cpu", "--quiet"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "columns: text ← review, label; no rationale" in lines
    train, dev = (len(expound.load_data(str(file), split, seed=0)) for split in ("train", "dev"))
    assert any(
        f"mine.csv is divided by a hash of text and seed: train {train}, dev {dev} rows" in line for line in lines
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --model"),
        (["--config", "tiny", "--model", "x"], "either --model"),
        (["--config", "tin"], "Did you mean 'tiny'?"),
        (["--config", "nowhere.json"], "nowhere.json does not exist"),
        (["--model", "./nowhere"], "no model at ./nowhere"),
        (["--config", "tiny", "--set", "weight_decay"], "NAME=VALUE"),
        (["--config", "tiny", "--set", "weight=1"], "unusable training arguments"),
        (["--config", "tiny", "--train-split", "training"], "unknown split 'training'"),
        (["--config", "tiny", "--device", "tpu"], "expected the device cpu or cuda"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, message, tmp_path, capsys):
    assert main(["train", "baseline", *SMALL, *arguments, "--output-dir", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_guided_run_says_its_weights_and_its_figures_before_training(tmp_path, capsys):
    settings = ["--config", "tiny", "--weight", "10", "--output-dir", str(tmp_path / "run")]
    assert main(["train", "er_joint", *SMALL, *settings]) == 0
    head, *lines = (line for line in capsys.readouterr().out.splitlines() if line)
    assert re.fullmatch(
        r"dev \(\d+ rows\), best epoch 1 of 1 by loss; loss = 1 · cross_entropy \+ 10 · rationale_alignment:", head
    )
    (first,) = (entry for entry in read_history(tmp_path / "run") if entry.get("step") == 0)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for name in ("loss", "rationale_alignment", "accuracy"):
        assert f"{name}: {metrics[name]:.4f} (before training {first[f'eval_{name}']:.4f})" in lines
    begun, again = str(tmp_path / "run"), str(tmp_path / "again")
    assert main(["train", "er_joint", *SMALL, "--model", begun, "--output-dir", again]) == 0
    shown = capsys.readouterr()
    assert re.search(r"what er_joint is for: rationale_auc on \d+ dev rows.* of the model before training", shown.out)
    assert f"expound compare --model {again} --data 'generated?size=48' --split dev --against {begun}" in shown.err
    (tmp_path / "again" / "config.json").unlink()
    assert main(["explain", "a good film", "--model", again]) == 2
    assert "the training was interrupted" in capsys.readouterr().err


def read_history(folder):
    return json.loads((folder / "history.json").read_text())["history"]


def test_a_tracker_gets_what_is_logged(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    settings = ["--config", "tiny", "--max-length", "32", "--output-dir", str(tmp_path / "run")]
    words = ["train", "baseline", *map(str, SMALL), *settings, "--report-to", "tensorboard"]
    with forge() as process:
        code, said = run_to_end(process, words, tmp_path / "said")
    assert code == 0, said
    events = (tmp_path / "logs").rglob("events.out.tfevents.*")
    assert any(b"eval/accuracy" in each.read_bytes() for each in events)
