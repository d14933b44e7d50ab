"""The time left is the mean time of finished runs of the same kind; a kind that no run has finished is unknown."""

from __future__ import annotations

import pytest

from expound.cli import main
from expound_papers.runs.store import Store, write_record
from expound_papers.study.loading import load_study
from expound_papers.tables.estimate import TimeLeft, estimate_time_left, sum_time_spent

FILE = """\
from expound_papers.study import Data, Model, Study, Training, register

def train(study: Study):
    study.seeds = 3
    train, dev = (Data(name, "generated?size=24", split=name) for name in ("train", "dev"))
    films, tiny = Training("films", train, dev), Model("tiny", "tiny")
    plain = study.train("plain", "baseline", films, tiny)
    return plain, study.train("short", "baseline", films, tiny, arguments={"num_train_epochs": 1}), films, tiny

@register
def one(study: Study) -> None:
    *runs, films, tiny = train(study)
    runs.append(study.train("joint", "er_joint", films, tiny))
    study.judge("plausible", runs, films.dev, {"random": "random"}, {"rationale_auc": "rationale_auc"})

@register
def two(study: Study) -> None:
    train(study)
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "studies.py"
    path.write_text(FILE)
    return load_study(f"{path}:one"), Store(tmp_path / "runs")


def finish(store, cell, cpu_seconds):
    with store.workspace(cell) as space:
        write_record(space.output, cell, 1, seconds=1.0, cpu_seconds=cpu_seconds)


def cells_of(found, recipe, judgement=""):
    return [run.cell for run in found.runs if run.recipe == recipe and run.judgement == judgement]


def test_nothing_is_known_of_a_kind_that_no_run_has_finished(study):
    found, store = study
    assert estimate_time_left([found], store) == TimeLeft(0.0, 0, 18)
    assert sum_time_spent(found.cells, store) == 0


def test_runs_take_as_long_as_finished_ones_of_their_recipe_and_epochs_alone(study):
    found, store = study
    for cell, seconds in zip(cells_of(found, "plain"), (10.0, 30.0), strict=False):
        finish(store, cell, seconds)
    assert estimate_time_left([found], store) == TimeLeft(20.0, 1, 15)
    assert sum_time_spent(found.cells, store) == 40


def test_a_judgement_takes_as_long_for_models_of_all_recipes(study):
    found, store = study
    finish(store, cells_of(found, "plain", "plausible")[0], 5.0)
    assert estimate_time_left([found], store) == TimeLeft(8 * 5.0, 8, 9)


def test_a_dry_run_of_several_studies_counts_what_they_share_once(tmp_path, capsys, study):
    names = [f"{tmp_path}/studies.py:{name}" for name in ("one", "two")]
    assert main(["study", "run", *names, "--dry-run", "--quiet", "--output-dir", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "one-small: 18 runs" in said
    assert "two-small: 6 runs" in said
    assert "all 2: 18 runs, shared ones once; left: unknown yet for 18 runs" in " ".join(said.split())
    assert not (tmp_path / "runs").exists()


def test_status_shows_what_runs_took_and_what_is_left(tmp_path, capsys, study):
    found, store = study
    finish(store, cells_of(found, "plain")[0], 120.0)
    assert main(["study", "status", f"{tmp_path}/studies.py:one", "--output-dir", str(store.root)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "9 training runs (1 done)" in said
    assert "done: took 2 min of one core" in said
    assert "left: about 4 min of one core for 2 runs, unknown yet for 15 runs" in said
