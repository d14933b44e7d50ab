"""Judgements with limits, explanations of untrained models, and students of a model's explanations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from expound.errors import ExpoundError
from expound.explainers import explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.metrics import metric
from expound.models import load
from expound.models.loading.checkpoint import digest_weights
from expound.training import RunOptions
from expound.training.bilevel.scaffold import predict_dataset
from expound.training.bilevel.students import Teaching
from expound_papers.protocols.performance import evaluate_performance
from expound_papers.protocols.train_students import train_students
from expound_papers.runs import sources
from expound_papers.runs.execution import sample_examples
from expound_papers.runs.noisy_control import BestOfNoisy
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.store import Store
from expound_papers.study.loading import load_study
from expound_papers.tables.results import collect_results
from expound_papers.tables.tables import make_study_table
from families import tiny
from runs import sentences
from small import shared, small, uneven

FILE = Path(__file__).with_name("study_of_controls.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("controls") / "runs"
    found = load_study(FILE)
    for cell in found.cells:
        assert run_cell(cell, root)
    return collect_results(found, Store(root))


def test_costly_explainers_are_judged_on_a_part_of_the_same_examples(results):
    runs = {tuple(run.explainers): run for run in results.find_runs(judgement="explained", seed=0)}
    assert list(runs) == [("untrained", "IxG"), ("words",), ("noisy",)]
    assert [run.title.split(" / ")[4:] for run in runs.values()] == [
        ["explained", "test"], ["explained", "first 3", "test"], ["explained", "first 2", "test"],
    ]  # fmt: skip
    examples = [results.read_examples(run)["example"].unique().tolist() for run in runs.values()]
    assert examples == [[0, 1, 2, 3], sample_examples(4, 3), sample_examples(4, 2)]
    assert set(sample_examples(4, 2)) < set(sample_examples(4, 3))
    assert [results.read_predictions(run)["example"].tolist() for run in runs.values()] == examples
    noisy = results.figures.query("explainer == 'noisy' and metric == 'A-C'")
    assert noisy["value"].iloc[0] == pytest.approx(results.read_examples(runs["noisy",])["A-C"].mean())
    accuracies = results.figures.query("metric == 'accuracy' and dataset == 'test' and judgement == 'explained'")
    assert len(accuracies) == 2
    table = make_study_table(results, "explained")
    assert table.rows == ["untrained", "words", "IxG", "noisy"]
    assert "3 tests" in table.note


def test_the_best_of_noisy_maps_is_the_one_that_the_metric_likes():
    model, examples = shared("bert"), uneven("bert")
    batch, of, judge = model.encode(examples), explainer("input_x_gradient"), metric("aopc_comprehensiveness")
    found = BestOfNoisy(of, "aopc_comprehensiveness", maps=6, spread=0.7, seed=3).attribute(model, batch)
    only = BestOfNoisy(of, "aopc_comprehensiveness", maps=6, spread=0.7, seed=3).attribute(model, batch.select([1]))
    assert torch.allclose(found[1, : only.shape[1]], only[0])
    first = judge.evaluate(model, batch, of.attribute(model, batch))["aopc_comprehensiveness"]
    best = judge.evaluate(model, batch, found)["aopc_comprehensiveness"]
    assert (best >= first).all()
    assert (best > first).any()
    tiny = BestOfNoisy(of, "aopc_comprehensiveness", maps=3, spread=1e-12).attribute(model, batch)
    assert torch.allclose(tiny, of.attribute(model, batch), atol=1e-9)


def test_untrained_explainers_are_made_for_the_model_that_they_explain():
    model = shared("bert")
    batch = model.encode(uneven("bert"))
    for spec, made in (
        ("parameterized_attention?untrained", ParameterizedAttention.for_model(model)),
        ("parameterized_attention?untrained&used_layers=last", ParameterizedAttention.for_model(model, "last")),
        ("interpretable_attention?untrained=true&normalizer=softmax&special_tokens=no",
         InterpretableAttention.for_model(model, normalizer="softmax", special_tokens=False)),
    ):  # fmt: skip
        assert torch.equal(explainer(spec, model).attribute(model, batch), made.attribute(model, batch))
        assert explainer(spec, model).name == made.name
    for wrong, message in (
        ("layer=last", "unknown parameter"),
        ("used_layers=lost", "used_layers 'lost'. Did you mean 'last'"),
        ("n_heads=3", "unknown parameter"),
        ("special_tokens=perhaps", "true or false"),
    ):
        with pytest.raises(ExpoundError, match=message):
            explainer(f"parameterized_attention?untrained&{wrong}", model)
    with pytest.raises(ExpoundError, match="pass model=, the model that it explains"):
        explainer("parameterized_attention?untrained")
    with pytest.raises(ExpoundError, match="must be trained before it explains"):
        explainer("attributive_masking?untrained")
    with pytest.raises(ExpoundError, match="is learned: give the folder"):
        explainer("parameterized_attention?untrained=false")


def test_students_are_those_that_learn_one_by_one(results):
    run = next(iter(results.find_runs(judgement="taught", seed=1)))
    rows = results.read_examples(run)
    assert rows["example"].tolist() == [2, 3] * 3
    assert rows["explainer"].unique().tolist() == ["nothing", "untrained", "IxG"]
    study, teacher = results.study, load(results.store.cell_folder(run.cell.needs[0]))
    parts = {name: sources.load_dataset(study.datasets[name].resolve()) for name in ("pool", "dev", "test", "films")}
    assert not set(parts["pool"]["text"][:]) & set(parts["films"]["text"][:])
    teaching = Teaching(teacher, "untrained")
    said = teaching.label_data(parts["pool"])
    folder = results.store.root / "again"
    arguments = {"num_train_epochs": 2, "learning_rate": 1e-3, "use_cpu": True, "save_strategy": "no"}
    arguments |= {"eval_strategy": "no", "load_best_model_at_end": False}
    result = teaching.run(
        "tiny", said, teaching.label_data(parts["dev"]), folder, RunOptions(seed=3, arguments=arguments)
    )
    predicted = [evaluate_performance(model, parts["test"])[1]["predicted"] for model in (result.model, teacher)]
    one, other = (each.map(np.argmax) for each in predicted)
    told = rows.query("explainer == 'untrained' and example == 3")["simulatability"].item()
    assert told == pytest.approx((one == other).mean())
    table = make_study_table(results, "taught")
    assert table.count[:, 0].tolist() == [2, 2, 2]
    assert table.columns == ["simulatability ↑"]


def test_finished_students_are_kept_and_all_start_from_the_same_weights(tmp_path):
    data, start, teacher = sentences(12), tiny("bert"), small("bert")
    arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True}
    options = RunOptions(arguments=arguments, processing_class=teacher.processing_class)
    call = (start, Teaching(teacher), (data, data, data), tmp_path, ["none", "learned"], [0, 1], options)
    frame = train_students(*call)
    # A student with other figures shows that it is read and not trained again.
    (tmp_path / "learned-12-1" / "student.json").write_text('{"simulatability": 2.0}')
    again = train_students(*call)
    assert again["simulatability"].tolist() == [*frame["simulatability"][:3], 2.0]
    model = load(tmp_path / "learned-12-0", device="cpu")
    agreed = (predict_dataset(model, data).argmax(-1) == predict_dataset(teacher, data).argmax(-1)).mean()
    assert frame["simulatability"][2] == pytest.approx(agreed)
    records = [json.loads((tmp_path / f"none-12-{seed}" / "expound_run.json").read_text()) for seed in (0, 1)]
    assert [record["config"]["model"]["weights"] for record in records] == [digest_weights(tiny("bert"))] * 2


def test_addresses_hold_datasets_and_models_by_content_and_not_by_path(results):
    options = [run.cell.config["protocol"]["options"] for run in results.find_runs(judgement="taught")]
    assert options[0] == options[1]
    assert options[0]["pool"] == {"dataset": sources.dataset_address(results.study.datasets["pool"].resolve()).address}
    assert options[0]["start"] == {"model": dict(sources.model_address("tiny").address)}
