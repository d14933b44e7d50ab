"""A search trains a run per value, resumes after a stop, chooses by its rule, and ends where a plain run would."""

from __future__ import annotations

import json
import math
import signal

import pytest
from transformers import TrainerCallback

import expound
import families
from expound import ExpoundError
from expound.cli import main
from expound.models.loading.checkpoint import digest_weights
from expound.recipes.search import choose_run

DATA = "generated?size=96"
ARGS = {"num_train_epochs": 1, "per_device_train_batch_size": 16, "disable_tqdm": True, "use_cpu": True}


def read_record(folder):
    return json.loads((folder / "expound_run.json").read_text())


def digest(folder):
    return digest_weights(expound.load(folder, device="cpu").model)


def test_a_command_keeps_the_best_run_where_a_plain_run_would_be(tmp_path, capsys, caplog):
    folder = tmp_path / "run"
    plain = ["--config", "tiny", "--data", DATA, "--device", "cpu", "--epochs", "1", "--batch-size", "16", "--quiet"]
    plain += ["--output-dir", str(folder)]
    command = ["train", "er_joint", *plain, "--search", "weight=0,30"]
    assert main(command) == 0
    shown = capsys.readouterr().out

    # the figures again, by `compare` on the dev split
    dev = expound.load_data(DATA, "dev")
    search = read_record(folder)["search"]
    assert (search["figure"], search["task_metric"]) == ("rationale_auc of attention_last", "accuracy")
    expected = []
    for run in search["runs"]:
        own = folder / "search" / f"weight-{run['weight']:g}"
        model = expound.load(own, device="cpu")
        results = expound.compare(model, dev, ["attention_last"], ["rationale_auc"], show_progress=False).results
        assert run["value"] == pytest.approx(results["rationale_auc"].mean(), abs=1e-6)
        assert run["task_value"] == json.loads((own / "metrics.json").read_text())["accuracy"]
        assert f"{run['value']:.4f}" in shown
        expected.append((run["value"], run["weight"], own))
    best = max(expected)
    assert search["chosen"] == {"weight": best[1]}
    assert digest(folder) == digest(best[2])
    assert (folder / "metrics.json").read_text() == (best[2] / "metrics.json").read_text()

    written = (best[2] / "metrics.json").stat().st_mtime_ns
    caplog.clear()
    assert main(command) == 0
    assert main(["train", "er_joint", *plain, "--weight", str(best[1])]) == 0
    assert caplog.text.count("nothing to do") >= 3
    assert (best[2] / "metrics.json").stat().st_mtime_ns == written
    assert main(["train", "er_joint", *plain, "--weight", "5"]) == 2
    assert "another configuration" in capsys.readouterr().err


class StopAt(TrainerCallback):
    """Sends SIGTERM in the first step of the second run."""

    def __init__(self):
        self.runs = 0

    def on_train_begin(self, args, state, control, **_):
        self.runs += 1

    def on_step_end(self, args, state, control, **_):
        if self.runs == 2 and state.global_step == 1:
            signal.raise_signal(signal.SIGTERM)


def test_a_stopped_search_resumes_and_is_equal_to_an_unbroken_one(tmp_path):
    start = families.tiny("bert", num_labels=2)
    before = digest_weights(start)
    call = {"data": DATA, "recipe": "rrr", "args": ARGS}
    options = {"processing_class": families.tokenizer("bert"), "device": "cpu"}
    call |= {"search": {"weight": [0.1, 100], "batch_fraction": [0.5]}}
    stopped = expound.train(start, output_dir=tmp_path / "run", options={**options, "callbacks": [StopAt()]}, **call)
    assert not stopped.finished
    assert not (tmp_path / "run" / "metrics.json").exists()
    finished = [path.parent.name for path in (tmp_path / "run" / "search").glob("*/metrics.json")]
    assert finished == ["weight-0.1,batch_fraction-0.5"]
    resumed = expound.train(start, output_dir=tmp_path / "run", options=options, **call)
    unbroken = expound.train(start, output_dir=tmp_path / "whole", options=options, **call)
    assert read_record(tmp_path / "run")["search"] == read_record(tmp_path / "whole")["search"]
    assert len(read_record(tmp_path / "run")["search"]["runs"]) == 2
    assert resumed.output_dir == tmp_path / "run"
    assert digest_weights(resumed.model.model) == digest_weights(unbroken.model.model) == digest(tmp_path / "run")
    assert digest_weights(start) == before


def test_recipes_without_a_metric_are_judged_by_the_figure_of_their_checkpoints(tmp_path):
    search = {"student_weight": [0.1, 5]}
    result = expound.train(
        "tiny", DATA, "smat", output_dir=tmp_path, search=search, args={"max_steps": 2, "use_cpu": True}
    )
    found = read_record(tmp_path)["search"]
    assert found["figure"] == "simulatability"
    values = [run["value"] for run in found["runs"]]
    assert result.metrics["simulatability"] in values
    assert all(math.isfinite(value) for value in values)


def test_options_of_the_run_are_searched_over_seeds_by_a_named_figure(tmp_path, capsys):
    """The paper's selection: a grid of rates and weights by the cross-entropy on dev, a mean over seeds."""
    settings = ["--config", "tiny", "--data", "generated?size=48", "--device", "cpu", "--quiet"]
    command = ["train", "er_joint", *settings, "--output-dir", str(tmp_path), "--epochs", "1", "--seeds", "3,4"]
    grid = ["--search", "learning-rate=1e-4,1e-2", "--search", "weight=1"]
    assert main([*command, *grid, "--search-by", "cross_entropy"]) == 0
    search = read_record(tmp_path)["search"]
    assert (search["figure"], search["seeds"]) == ("cross_entropy", [3, 4])
    for run in search["runs"]:
        own = [
            tmp_path / "search" / f"learning_rate-{run['learning_rate']:.15g},weight-1,seed-{seed}" for seed in (3, 4)
        ]
        values = [json.loads((folder / "metrics.json").read_text())["cross_entropy"] for folder in own]
        assert run["value"] == pytest.approx(sum(values) / 2, abs=1e-12)
        assert read_record(own[1])["config"]["seed"] == 4
        assert read_record(own[1])["config"]["arguments"]["learning_rate"] == run["learning_rate"]
    lowest = min(search["runs"], key=lambda run: run["value"])
    assert search["chosen"] == {name: lowest[name] for name in ("learning_rate", "weight")}
    assert main([*command[:-2], *grid, "--search-by", "entropy", "--overwrite"]) == 2
    assert "unknown figure to search by 'entropy'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("runs", "higher", "expected"),
    [
        ([(0.5, 0.90, True), (0.7, 0.89, True), (0.9, 0.88, True)], True, 1),
        ([(0.5, 0.90, True), (0.7, 0.89, True), (0.9, 0.88, True)], False, 0),
        ([(0.5, 0.90, True), (0.9, 0.95, False), (None, 0.99, True)], True, 0),
        ([(0.5, None, True), (0.6, None, True), (0.6, None, True)], True, 1),
    ],
)
def test_which_run_is_chosen_by_hand(runs, higher, expected):
    named = [dict(zip(("value", "task_value", "feasible"), run, strict=True)) for run in runs]
    assert choose_run(named, higher) == expected
    with pytest.raises(ExpoundError, match="no run of the search can be chosen"):
        choose_run([run | {"feasible": False} for run in named], higher)


@pytest.mark.parametrize(
    ("recipe", "search", "message"),
    [
        (
            "er_joint",
            "wait=1,2",
            "unknown parameter of er_joint 'wait'. Did you mean 'weight'? Valid choices: distance, explainer, ",
        ),
        ("er_joint", "weight=1,x", "weight: expected float, got 'x'"),
        ("er_joint", "weight", "expected --search NAME=VALUE,VALUE"),
        ("er_joint", "weight=1,-1", "weight of rationale_alignment is at least 0, got -1"),
        (
            "er_joint",
            "explainer=attention,rollout",
            "one figure, but these have several: rationale_auc of attention_last, rationale_auc of",
        ),
        ("er_bound", "explainer=attention,rollout", "er_bound has no figure to choose by"),
        ("fresh", "explainer=random,occlusion?baseline=dot", "unknown parameter of occlusion 'baseline'"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_training(recipe, search, message, tmp_path, capsys):
    settings = ["--config", "tiny", "--data", DATA, "--device", "cpu", "--output-dir", str(tmp_path / "run")]
    assert main(["train", recipe, *settings, "--search", search]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_run_in_the_folder_is_not_replaced(tmp_path):
    expound.train("tiny", DATA, "baseline", output_dir=tmp_path, args=ARGS)
    with pytest.raises(ExpoundError, match="holds something else"):
        expound.train("tiny", DATA, "er_joint", output_dir=tmp_path, search={"weight": [1, 2]}, args=ARGS)
    for search in ({}, {"weight": []}):
        with pytest.raises(ExpoundError, match="expected a parameter and its values"):
            expound.train("tiny", DATA, "er_joint", output_dir=tmp_path, search=search, args=ARGS)
    with pytest.raises(ExpoundError, match="values of explainer to search, got"):
        expound.train("tiny", DATA, "er_joint", output_dir=tmp_path, search={"explainer": [object()]}, args=ARGS)
