"""Estimates: the machine's speed is measured once, finished runs correct what is left, protocols cost what they do."""

from __future__ import annotations

import re

import pytest

from exegete.cli import main
from exegete.metrics import metric
from exegete.studies.runs import estimate, timed_steps
from exegete.studies.runs.grid import grid
from exegete.studies.runs.speed import Speed, known
from exegete.studies.runs.store import Cell, Store, describe
from exegete.studies.spec.sources import Source
from exegete.studies.spec.study_file import load_study
from small_cells import ordinary

FILE = """\
datasets: {train: {spec: "generated?size=24", split: train}, dev: {spec: "generated?size=24", split: dev}}
training: {films: {train: train, dev: dev}}
models: {tiny: {source: tiny}}
recipes: {plain: {recipe: baseline}, other: {recipe: baseline, arguments: {num_train_epochs: 1}}}
seeds: 2
"""


def cell(number, kind="train", recipe="baseline", flops=6e11, **more):
    return Cell({"kind": kind, "recipe": recipe, "number": number, **more}, ordinary, str(number), flops=flops)


def finish(store, run, cpu_seconds):
    with store.fresh(run) as space:
        describe(space.fresh, run, 1, seconds=1.0, cpu_seconds=cpu_seconds)


def test_the_speed_of_a_machine_is_timed_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(timed_steps, "SIZES", {**timed_steps.SIZES, "hidden_size": 24, "vocab_size": 30000})
    store = Store(tmp_path)
    assert known(store) is None
    found = timed_steps.measured(store)
    assert all(each > 0 for each in found)
    monkeypatch.setattr(timed_steps, "_timed", lambda: pytest.fail("timed again"))
    assert timed_steps.measured(store) == found == known(store)


def test_bfloat16_and_judging_have_speeds_of_their_own():
    speed = Speed(training=1e9, bfloat16=2e9, judging=4e9)
    start = estimate.STARTING_SECONDS
    assert estimate.seconds_of({"kind": "train", "arguments": {}}, 8e9, speed) == 8 + start["train"]
    assert estimate.seconds_of({"kind": "train", "arguments": {"bf16": True}}, 8e9, speed) == 4 + start["train"]
    assert estimate.seconds_of({"kind": "judge"}, 8e9, speed) == 2 + start["judge"]


def test_finished_runs_correct_those_of_their_kind_alone(tmp_path):
    store = Store(tmp_path)
    runs = [cell(number) for number in range(4)] + [cell(9, recipe="aml")]
    first = estimate.left(runs, store)
    alone = estimate.seconds_of(runs[0].config, runs[0].flops, estimate.USUAL)
    assert first == (5 * alone, 0, False)
    for run, times in zip(runs, (2.0, 3.0, 30.0), strict=False):
        finish(store, run, times * alone)
    assert estimate.left(runs, store) == (pytest.approx((3 + 1) * alone), 3, False)
    took, estimated = estimate.spent(runs, store)
    assert (took, estimated) == (pytest.approx(35 * alone, abs=0.01), pytest.approx(3 * alone))


def test_operations_of_small_models_take_longer():
    each = [estimate.a_token(Source({}, parameters=size)) for size in (1e5, 1e7, 1e8)]
    assert each[0] == pytest.approx(2e5 * (estimate.TIMED / 1e5) ** 0.5)
    assert each[1:] == [pytest.approx(2e7, rel=0.05), 2e8]


def test_sets_of_removed_units_are_counted_once_for_all_explainers():
    data, model, named = Source({}, (10.0,) * 5), Source({}, parameters=estimate.TIMED), {"random": {}, "saliency": {}}
    lds, erasing = metric("lds?n_masks=16"), metric("aopc_comprehensiveness")
    alone, both = (estimate.judging(data, model, named, each) for each in ([erasing], [erasing, lds]))
    assert both - alone == 16 * 50 * estimate.a_token(model)


def test_protocols_are_counted():
    data, pool, model = Source({}, (10.0,) * 5), Source({}, (10.0,) * 20), Source({}, parameters=2.0**24)

    def passes(name, explainers=(), **options):
        config = {"protocol": {"name": name, "options": options}, "explainers": {each: {} for each in explainers}}
        return estimate.following(data, model, config, {"pool": pool}, None) / (estimate.a_token(model) * 50)

    assert passes("simulatability") == 2
    assert passes("attack", budget=1, choices=5) == 1
    assert passes("attack", budget=None, choices=5) == passes("attack", budget=10000, choices=5)
    assert passes("attack", budget=None, choices=11) == pytest.approx(1 + 11 * 10 / estimate.SWAPPED)
    assert passes("select_then_predict", explainer="random") == 1
    assert passes("select_then_predict", explainer="input_x_gradient") == 4
    one = passes("students", ["random"], count=1, arguments={"num_train_epochs": 2})
    assert one == 2 * (estimate.BASELINE + 1) * 4 + 1
    both = passes("students", ["random", "none"], count=3, arguments={"num_train_epochs": 2})
    assert both == 6 * one + 4


def test_an_attack_tries_a_stretch_again_until_it_is_swapped():
    """Of four stretches with five words each it shows 20, 15, 10 and 5 changed texts, and the given one."""
    config = {"protocol": {"name": "attack", "options": {"budget": None, "choices": 5}}, "explainers": {}}
    data, model = Source({}, (4.0 * estimate.SWAPPED,) * 3), Source({}, parameters=2.0**24)
    passes = estimate.following(data, model, config, {}, None) / (estimate.a_token(model) * data.tokens(None))
    assert passes == 1 + 20 + 15 + 10 + 5


def test_a_run_looks_at_the_rows_that_its_recipe_takes():
    model, train, dev = Source({}, parameters=2.0**24), Source({}, (10.0,) * 100), Source({}, ())

    def passes(recipe, **parameters):
        config = {"recipe": recipe, "parameters": parameters, "arguments": {"num_train_epochs": 2}, "max_length": 5}
        return estimate.training(train, dev, model, config) / (5 * estimate.a_token(model))

    assert passes("baseline") == 100 * (2 * estimate.BASELINE + 1)
    assert passes("smat", explainer_id="none", student_size=20) == 20 * (2 * estimate.BASELINE + 1)
    assert passes("fresh", explainer_id="input_x_gradient") == 100 * (2 * estimate.BASELINE + 4)


def test_a_dry_run_of_several_files_counts_what_they_share_once(tmp_path, capsys):
    (tmp_path / "one.yaml").write_text(FILE)
    (tmp_path / "two.yaml").write_text("extends: one.yaml\nseeds: 3\nrecipes: {other: null}\n")
    files = [str(tmp_path / name) for name in ("one.yaml", "two.yaml")]
    assert main(["study", "run", *files, "--dry-run", "--quiet", "--output-dir", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "one-small: 4 runs" in said
    assert "two-small: 3 runs" in said
    assert "all 2: 5 runs, shared ones once; left: about" in said
    assert "the speed of a usual core" in said
    assert not (tmp_path / "runs").exists()


def test_status_shows_what_runs_took_beside_their_estimate(tmp_path, capsys):
    path, store = tmp_path / "one.yaml", Store(tmp_path / "runs")
    path.write_text(FILE)
    finish(store, next(iter(grid(load_study(path)).cells)), 120.0)
    assert main(["study", "status", str(path), "--output-dir", str(store.root)]) == 0
    said = capsys.readouterr().out
    assert "4 training runs (1 done)" in said
    assert re.search(r"done: took 2 min of one core, estimated \d+ s", said)
    assert "measured on 1 runs" in said
