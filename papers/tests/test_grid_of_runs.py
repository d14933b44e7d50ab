"""A grid of eight runs: without a stop, and with a worker killed, the command killed, and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau, spearmanr

from attacked import LONG
from expound.cli import main
from expound.data.provenance import digest
from expound.metrics import metric
from expound.reports.explanations import Explanations
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.store import Store
from expound_papers.study.display import FigurePart
from expound_papers.study.loading import load_study
from expound_papers.tables.figures import (
    make_agreement_matrices,
    make_budget_curves,
    make_layer_curves,
    make_scatters,
    make_strips,
    measure_correlation,
)
from expound_papers.tables.layout import center_and_spread
from expound_papers.tables.leaderboards import make_leaderboards
from expound_papers.tables.metric_agreement import kendall_matrix
from expound_papers.tables.page import PagePart, fill_page
from expound_papers.tables.report import write_report
from expound_papers.tables.results import collect_results
from expound_papers.tables.tables import make_study_table
from forks import command, forge, run_to_end

FILE = Path(__file__).with_name("study_for_tests.py")
TABLES = ("f1", "explainers", "losses")


@pytest.fixture(scope="module")
def reference_root(tmp_path_factory):
    """The store of all eight runs, done one after the other in this process."""
    root = tmp_path_factory.mktemp("undisturbed") / "runs"
    for cell in load_study(FILE).cells:
        assert run_cell(cell, root)
    return root


@pytest.fixture(scope="module")
def results(reference_root):
    found = collect_results(load_study(FILE), Store(reference_root))
    assert len(found.study.cells) == 8
    return found


def run_study(root, workers, *more):
    """The words of the command that runs the study."""
    return ["study", "run", FILE, "--output-dir", root, "--workers", workers, "--threads", "1", *more]


def find_training_processes(root):
    """The processes that are training: those whose run has a checkpoint already."""
    found = []
    for path in root.glob(".work/*/run/checkpoint-*"):
        with suppress(OSError):
            found.append(json.loads((root / ".claims" / path.parents[1].name).read_text())["process"])
    return found


def wait_for(happened, process, said):
    """Calls the function until it returns a true value, and returns that value."""
    end = time.monotonic() + 300
    while not (found := happened()):
        assert time.monotonic() < end
        assert process.running(0.02), said.read_text()[-2000:]
    return found


REASON = "in make attack; test_attack_kills kills the workers of a shorter study"
ENGINES = (
    pytest.param("local", marks=[pytest.mark.attack, pytest.mark.skipif(not LONG, reason=REASON)]),
    pytest.param("ray", marks=pytest.mark.cluster),
)


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_and_resumed_ends_in_the_same_tables(reference_root, results, tmp_path, engine, request):
    """One worker dies in the middle of its run, later the whole command; the tables are equal to the last byte."""
    root = tmp_path / "runs"
    more = ["--engine", "ray", "--address", request.getfixturevalue("cluster")] if engine == "ray" else []
    said = tmp_path / "said"
    with forge() as process:
        process.start(command, run_study(root, 2, *more), said)
        os.kill(wait_for(lambda: find_training_processes(root), process, said)[0], signal.SIGKILL)
        wait_for(lambda: len(Store(root).list_finished()) >= 2, process, said)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        before = {key: (root / "cells" / key / "cell.json").read_bytes() for key in Store(root).list_finished()}
        assert 2 <= len(before) < 8
        assert "killed, retrying: its process died" in said.read_text()
        code, told = run_to_end(process, run_study(root, 1, *more), said)
    assert code == 0, told[-2000:]
    for key, record in before.items():
        assert (root / "cells" / key / "cell.json").read_bytes() == record
    write_report(results, reference_root / "studies" / "again")
    for name in TABLES:
        for ending in ("csv", "md"):
            there = reference_root / "studies" / "again" / f"{name}.{ending}"
            assert (root / "studies" / "study-for-tests-small" / f"{name}.{ending}").read_bytes() == there.read_bytes()
    assert not any((root / ".work").iterdir())


def test_a_table_is_what_its_runs_say(results):
    table = make_study_table(results, "f1")
    assert table.rows == ["slow", "fast"]
    assert table.columns == ["dev / accuracy ↑", "dev / f1_macro ↑"]
    for row, recipe in enumerate(table.rows):
        found = [
            json.loads((results.store.cell_folder(run.cell.key) / "figures.json").read_text())["accuracy"] * 100
            for run in results.find_runs(recipe=recipe)
        ]
        assert table.center[row, 0] == pytest.approx(np.mean(found))
        assert table.high[row, 0] - table.center[row, 0] == pytest.approx(np.std(found, ddof=1))
        assert table.count[row, 0] == 2
    losses = make_study_table(results, "losses")
    trained = [run.cell.key for run in results.study.runs if not run.dataset and run.recipe == "slow"]
    values = [json.loads((results.store.cell_folder(k) / "metrics.json").read_text())["cross_entropy"] for k in trained]
    assert losses.center[0, 0] == pytest.approx(np.mean(values))
    assert losses.high[0, 0] - losses.center[0, 0] == pytest.approx(np.std(values, ddof=1) / 2**0.5)
    assert sorted(losses.rank[:, 0]) == [1, 2]
    assert losses.rank[np.argmin(losses.center[:, 0]), 0] == 1


def test_explainers_are_compared_with_the_same_one_of_the_reference(results):
    table = make_study_table(results, "explainers")
    assert table.rows == ["slow / IxG", "slow / ATT", "fast / IxG", "fast / ATT"]
    # The rows were trained at two rates, so their differences are not put down to the recipe.
    assert not table.marked.any()
    assert "Not tested: fast / IxG (other rate), fast / ATT (other rate)" in table.note
    runs = [
        pd.read_parquet(results.store.cell_folder(r.cell.key) / "results.parquet")
        for r in results.find_runs(recipe="fast")
    ]
    means = [frame[frame["method"] == "attention_last"]["rationale_auc"].mean() for frame in runs]
    assert table.center[3, 0] == pytest.approx(np.median(means))
    assert table.low[3, 0] == pytest.approx(np.percentile(means, 25))


def test_figures_are_what_runs_say(results):
    figures = results.study.figures
    (strip,) = make_strips(results, figures["seeds"])
    assert {name: len(values) for name, values in strip.values.items()} == {"slow": 2, "fast": 2}
    ((one, other),) = make_scatters(results, figures["scatter"])
    losses = make_study_table(results, "losses")
    assert [one.x[0], other.x[0]] == pytest.approx(losses.center[:, 0].tolist())
    runs = results.figures.query("metric == 'dev_cross_entropy'").merge(
        results.figures.query("metric == 'AUC' and explainer == 'IxG'"), on=["recipe", "seed"]
    )
    correlation = spearmanr(runs["value_x"], runs["value_y"]).statistic
    assert measure_correlation(results, figures["scatter"], "dev_cross_entropy").center == pytest.approx(correlation)
    page = PagePart(Path("page.md"), "", "small", {}, "{{all:scatter | dev_cross_entropy | ρ | within 2}}")
    assert fill_page(page, {"all": results}).startswith(f"{correlation:+.2f} [".replace("-", "−"))
    curves = make_budget_curves(results, figures["budgets"])
    assert [curve.method for curve in curves] == ["IxG", "ATT", "DX"]
    assert curves[0].x.tolist() == [1, 5, 10, 20, 50]
    (layered, _) = make_layer_curves(results, figures["layers"])
    last = results.figures.query("recipe == 'slow' and explainer == 'DX' and metric == 'AUC'")["value"]
    assert layered.mean[-1] == pytest.approx(last.mean(), abs=1e-6)


def test_agreement_is_kendalls_tau_of_the_same_examples(results):
    (matrix,) = make_agreement_matrices(results, results.study.figures["pairs"])[:1]
    taus = []
    for run in results.find_runs(recipe="slow"):
        items = Explanations.load(results.store.cell_folder(run.cell.key) / "attributions")
        size = len(items) // 3
        for one, other in zip(items[:size], items[size : 2 * size], strict=True):
            kept = ~np.array(one.special)
            taus.append(kendalltau(np.abs(one.token_scores[0][kept]), other.token_scores[0][kept]).statistic)
    assert matrix.values[0, 1] == pytest.approx(np.nanmean(taus))
    assert matrix.values[0, 0] == pytest.approx(1)
    (across,) = make_agreement_matrices(results, results.study.figures["agreement"])
    assert across.columns == ["slow / slow", "slow / fast"]
    assert (np.abs(across.values) <= 1).all()


def test_metrics_agree_as_far_as_they_rank_the_explainers_alike(results):
    part = FigurePart("agreement", between="metrics")
    slow, fast, mean = make_agreement_matrices(results, part)
    assert slow.rows == slow.columns == ["AUC", "A-C"]
    means = results.figures.query("explainer != ''").groupby(["recipe", "metric", "explainer"])["value"].mean()
    for recipe, matrix in (("slow", slow), ("fast", fast)):
        tau = kendalltau(means[recipe]["AUC"], means[recipe]["A-C"]).statistic
        np.testing.assert_allclose(matrix.values, [[1, tau], [tau, 1]])
    np.testing.assert_allclose(mean.values, (slow.values + fast.values) / 2)


def test_lower_is_better_turns_a_ranking_around_and_what_is_missing_does_not_count():
    figures = pd.DataFrame({"up": [1, 2, 3, 4], "down": [4.0, 3.0, np.nan, 1.0]})
    assert kendall_matrix(figures).tolist() == [[1, -1], [-1, 1]]


def test_a_model_that_missed_its_bound_counts_nowhere(reference_root, tmp_path):
    root = shutil.copytree(reference_root, tmp_path / "runs")
    found = load_study(FILE)
    missed = next(run for run in found.runs if not run.dataset and run.recipe == "fast" and run.seed == 1)
    metrics = Store(root).cell_folder(missed.cell.key) / "metrics.json"
    metrics.write_text('{"feasible": 0.0}'.ljust(metrics.stat().st_size))
    results = collect_results(found, Store(root))
    for recipe, seeds in {"slow": [0, 1], "fast": [0]}.items():
        assert [run.seed for run in results.find_runs(recipe=recipe)] == seeds
        assert sorted(set(results.figures.query("recipe == @recipe")["seed"])) == seeds
    assert make_study_table(results, "f1").count[:, 0].tolist() == [2, 1]
    (board,) = make_leaderboards(Store(root)).values()
    assert dict(zip(board.rows, board.count[:, 1], strict=True))["films / tiny / fast / decompx"] == 8


def test_the_leaderboard_has_every_judged_explanation(reference_root, capsys):
    ((dataset, board),) = make_leaderboards(Store(reference_root)).items()
    assert dataset.startswith("dev (")
    assert len(board.rows) == 6
    labels = [metric(name).card.label for name in ("rationale_auc", "aopc_comprehensiveness")]
    assert [card.label for card in board.cards] == labels
    assert board.count[0].tolist() == [2 * 8, 2 * 8]
    assert main(["study", "leaderboard", "--output-dir", str(reference_root), "--format", "csv"]) == 0
    assert "films / tiny / fast / decompx," in capsys.readouterr().out


def test_the_leaderboard_tells_models_of_one_name_apart(reference_root, tmp_path):
    store = Store(shutil.copytree(reference_root, tmp_path / "runs"))

    def copy_run(key, change):
        record = json.loads((store.cell_folder(key) / "cell.json").read_text())
        record["config"] |= change(record["config"])
        record["key"] = digest(record["config"])
        folder = shutil.copytree(store.cell_folder(key), store.cell_folder(record["key"]))
        (folder / "cell.json").write_text(json.dumps(record))
        return record["key"]

    for run in load_study(FILE).runs:
        if run.recipe == "fast" and run.dataset:
            trained = copy_run(run.cell.needs[0], lambda config: {"arguments": {**config["arguments"], "max_steps": 9}})
            copy_run(run.cell.key, lambda config, trained=trained: {"model": {"trained": trained}})
    (board,) = make_leaderboards(store).values()
    names = [row.removesuffix(" / decompx") for row in board.rows if row.endswith("decompx")]
    assert len(names) == 3
    assert "films / tiny / slow" in names
    assert len([name for name in names if re.fullmatch(r"films / tiny / fast \([0-9a-f]{6}\)", name)]) == 2
    assert set(board.count[:, 1]) == {2 * 8}


def test_tables_status_and_dry_run_from_the_command_line(reference_root, capsys):
    where = ["--output-dir", str(reference_root)]
    assert main(["study", "status", str(FILE), *where]) == 0
    assert "8 runs: 4 training runs (4 done), 4 judgements (4 done)" in capsys.readouterr().out
    assert main(["study", "table", str(FILE), *where, "--table", "f1", "--format", "tex"]) == 0
    assert r"\begin{tabular}{lrr}" in capsys.readouterr().out
    assert main(["study", "report", str(FILE), *where]) == 0
    page = (reference_root / "studies" / "study-for-tests-small" / "report.html").read_text()
    assert page.count("<img") == 6
    capsys.readouterr()
    assert main(["study", "run", str(FILE), *where, "--dry-run", "--only", "fast*dev"]) == 0
    assert capsys.readouterr().out.count("done  films / tiny / fast") == 4
    assert main(["study", "run", str(FILE), *where, "--no-resume"]) == 2
    assert "contains finished runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("mean ± sd", (2.0, 1.0, 3.0)),
        ("mean ± se", (2.0, 2 - 3**-0.5, 2 + 3**-0.5)),
        ("median [25–75]", (2.0, 1.5, 2.5)),
        ("mean", (2.0, np.nan, np.nan)),
    ],
)
def test_spreads(form, expected):
    values = np.array([1.0, 2.0, np.nan, 3.0])
    assert center_and_spread(values, form) == pytest.approx(expected, nan_ok=True)
    assert np.isnan(center_and_spread(np.array([np.nan]), form)).all()
    assert center_and_spread(np.array([5.0]), "mean ± sd") == pytest.approx((5, np.nan, np.nan), nan_ok=True)
