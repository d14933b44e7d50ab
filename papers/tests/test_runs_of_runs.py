"""Runs that start from, read, or are explained by the files of other runs; figures that come from several runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import expound
from expound.errors import ExpoundError
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.recipes import RECIPES, Recipe, extract_rationales
from expound.reports.explanations import Explanations
from expound_papers.paper_table import render_markdown
from expound_papers.protocols.performance import evaluate_performance
from expound_papers.runs import sources
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.store import Store
from expound_papers.study.loading import load_study
from expound_papers.tables.coefficients import make_coefficient_matrices
from expound_papers.tables.figures import make_agreement_matrices, make_table_matrix
from expound_papers.tables.results import collect_results
from expound_papers.tables.sweeps import make_history_curves, make_sweep_curves
from expound_papers.tables.tables import make_study_table

FILE = Path(__file__).with_name("study_of_runs.py")


@dataclass(frozen=True, kw_only=True)
class Attentive(Recipe):
    """Trains a model, and saves an explainer of one head beside it."""

    def run(self, model, train, dev, folder, options):
        result = super().run(model, train, dev, folder, options)
        learned = ParameterizedAttention.for_model(result.model, normalizer="none")
        with torch.no_grad():
            learned.coefficients.zero_()[-1, 0] = 3.0
        learned.save_pretrained(folder / "explainer")
        return result


def attentive() -> Recipe:
    """A recipe with an explainer in its folder."""
    return Attentive(name="attentive", paper="")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    RECIPES.native["attentive"] = EntryPoint("attentive", f"{__name__}:attentive", RECIPES.group)
    try:
        study = load_study(FILE)
        for cell in study.cells:
            assert run_cell(cell, root)
        yield collect_results(study, Store(root))
    finally:
        del RECIPES.native["attentive"]


def find_run_folder(results, recipe, judgement=""):
    (run, *_) = [run for run in results.study.runs if (run.recipe, run.judgement) == (recipe, judgement)]
    return results.store.cell_folder(run.cell.key)


def test_a_metric_asks_the_model_of_another_run(results, tmp_path):
    (judged,) = [run for run in results.study.runs if run.judgement == "own"]
    (copy,) = {run.cell.key for run in results.study.runs if run.recipe == "Continued" and not run.dataset}
    assert copy in judged.cell.needs
    stored = results.read_examples(judged)
    model = expound.load(results.store.cell_folder(judged.cell.needs[0]), device="cpu")
    data = sources.load_dataset(results.study.datasets["test"].resolve())
    spec = f"f_fidelity?copy={results.store.cell_folder(copy)}&n_samples=1"
    found = expound.compare(model, data, ["attention_last"], [spec], output_dir=tmp_path).results
    expected = stored[stored["explainer"] == "ATT"]["F"].to_numpy()
    np.testing.assert_allclose(found["f_fidelity"].to_numpy(), expected, rtol=1e-5, atol=1e-7)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(FILE.read_text().replace("{continued}", "{{run:Continues}}"))
    with pytest.raises(ExpoundError, match=r"wrong.py:\d+: unknown recipe 'Continues'. Did you mean 'Continued'"):
        load_study(wrong)


def test_a_table_over_examples_has_intervals_and_ties(results):
    (judged,) = [run for run in results.study.runs if run.judgement == "own"]
    rows = results.read_examples(judged)
    table = make_study_table(results, "tied")
    means = rows.groupby("explainer")["A-C"].mean().sort_values(ascending=False)
    np.testing.assert_allclose(table.center[:, 0], means.to_numpy())
    assert table.columns == ["A-C ↑", "A-S ↓"]
    assert (table.low <= table.center).all()
    assert (table.center <= table.high).all()
    (one, other) = (table.rows.index(name) for name in ("learned", "moved"))  # the same explainer, twice
    assert (table.rank[one] == table.rank[other]).all()
    shown = render_markdown(table)
    assert f"{table.center[0, 0]:.2f} [{table.low[0, 0]:.2f}, {table.high[0, 0]:.2f}]"[:4] in shown
    assert "Mean over examples with its bootstrap interval" in shown
    with pytest.raises(ExpoundError, match="for one training, model, recipe, dataset and judgement"):
        make_study_table(results, "mixed")


def test_needs_come_first_and_are_part_of_the_address(results):
    position = {run.cell.key: place for place, run in enumerate(results.study.runs)}
    for run in results.study.runs:
        assert all(position[need] < position[run.cell.key] for need in run.cell.needs)
    (teacher,) = [run.cell.key for run in results.study.runs if run.recipe == "Teacher" and not run.dataset]
    depending = {run.recipe for run in results.study.runs if teacher in run.cell.needs and not run.dataset}
    assert depending == {"Continued", "FRESH"}
    assert {run.seed for run in results.study.runs if run.recipe == "Student"} == {0, 1, 2}


def test_training_goes_on_from_another_runs_model(results):
    """With a learning rate of 0 the model stays what it was; a run without training is that model itself."""
    own = results.read_predictions(results.find_runs(recipe="Teacher")[0])["predicted"].tolist()
    for recipe in ("Continued", "Taken"):
        np.testing.assert_allclose(
            results.read_predictions(results.find_runs(recipe=recipe)[0])["predicted"].tolist(), own, atol=1e-6
        )
    (other,) = results.find_runs(recipe="FRESH", judgement="teacher's")
    np.testing.assert_allclose(results.read_predictions(other)["predicted"].tolist(), own, atol=1e-6)
    student = results.read_predictions(results.find_runs(recipe="Student", dataset="test")[0])["predicted"].tolist()
    assert not np.allclose(student, own)


def test_an_explainer_comes_from_the_judged_run_or_from_a_named_one(results):
    (run,) = results.find_runs(recipe="Teacher")
    rows = results.read_examples(run).set_index(["explainer", "example"])
    pd.testing.assert_frame_equal(rows.loc["learned"][["A-C", "A-S"]], rows.loc["moved"][["A-C", "A-S"]])
    learned = ParameterizedAttention.from_pretrained(find_run_folder(results, "Teacher") / "explainer")
    data = expound.load_data("generated?size=48", "test", limit=12)
    student = results.find_runs(recipe="Student", dataset="test", seed=1)[0]
    model = expound.load(results.store.cell_folder(student.cell.needs[0]))
    kept = Explanations.load(results.store.cell_folder(student.cell.key) / "attributions")[12:]
    for row, item in zip(data, kept, strict=True):
        with torch.no_grad():
            expected = learned.attribute(model, model.encode([row]))[0].numpy()
        np.testing.assert_allclose(item.token_scores[0], expected, atol=1e-5)


def test_parts_of_another_version_of_the_library_are_begun_anew(results, tmp_path):
    (run,) = results.find_runs(recipe="Teacher")
    for need in run.cell.needs:
        shutil.copytree(results.store.cell_folder(need), tmp_path / "cells" / need)
    left = Store(tmp_path).work_folder(run.cell.key) / "comparison"
    left.mkdir(parents=True)
    (left / "expound_run.json").write_text('{"digest": "another", "config": {}}')
    assert run_cell(run.cell, tmp_path)
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "cells" / run.cell.key / "results.parquet").drop(columns=["seconds", "peak_memory"]),
        pd.read_parquet(results.store.cell_folder(run.cell.key) / "results.parquet").drop(
            columns=["seconds", "peak_memory"]
        ),
    )


def test_a_protocols_figures_are_those_of_its_function(results):
    models = [expound.load(find_run_folder(results, name)) for name in ("FRESH", "Teacher")]
    data = expound.load_data("generated?size=48", "test", limit=12)
    figures, _ = evaluate_performance(models[0], extract_rationales(models[1], data, "occlusion", 0.4))
    told = results.figures.query("judgement == 'rationales'").set_index("metric")["value"]
    assert told["rationale_accuracy"] == pytest.approx(figures["accuracy"])
    assert told["rationale_f1_macro"] == pytest.approx(figures["f1_macro"])
    assert results.get_card("rationale_accuracy").higher_is_better


def test_a_student_foretells_its_teacher_as_often_as_both_say_the_same(results):
    """The teacher's own model foretells it always."""
    teacher = expound.load(find_run_folder(results, "Teacher"))
    exam = sources.load_dataset(results.study.datasets["exam"].resolve())
    said = evaluate_performance(teacher, exam)[1]["predicted"].map(np.argmax)
    for run in results.find_runs(judgement="foretold"):
        share = (results.read_predictions(run)["predicted"].map(np.argmax) == said).mean()
        told = results.figures.query(f"recipe == '{run.recipe}' and seed == {run.seed} and metric == 'simulatability'")
        assert told["value"].item() == pytest.approx(share)
        assert share == 1 or run.recipe == "Student"


def test_rows_are_marked_whose_quartiles_are_above_the_references(results):
    table = make_study_table(results, "foretold")
    assert table.rows == ["Student", "Taken"]
    assert table.center[1, 0] == 1
    assert table.marked[:, 0].tolist() == [False, table.high[0, 0] < 1]
    assert table.high[0, 0] < 1
    assert "quartile" in table.note


def test_coefficients_of_an_explainer_are_those_it_was_left_with(results):
    (matrix,) = make_coefficient_matrices(results, results.study.figures["weights"])
    assert matrix.title == "teaching / tiny / Teacher / learned / heads"
    assert matrix.values.shape == (2, 4)
    assert (matrix.values[1, 0], matrix.values.sum(), matrix.limit) == (3, 3, 3)


def test_rows_divide_a_split():
    usual = {"spec": "generated?size=48", "split": "train", "limit": None, "seed": 0, "options": {}}
    parts = [usual | {"rows": rows} for rows in ([0, 16], [16, 28])]
    pool, exam = (sources.load_dataset(part)["text"][:] for part in parts)
    assert (len(pool), len(exam)) == (16, 12)
    assert not set(pool) & set(exam)
    assert pool == expound.load_data("generated?size=48", "train", limit=16, seed=0)["text"][:]
    assert sources.dataset_address(parts[0]).address != sources.dataset_address(parts[1]).address
    assert "none to take from 40 to 99" in sources.dataset_address(usual | {"rows": [40, 99]}).problem


def test_how_alike_seeds_are_is_the_mean_over_pairs_of_examples(results):
    runs = results.find_runs(recipe="Student", dataset="test")
    tops = []
    for run in runs:
        items = Explanations.load(results.store.cell_folder(run.cell.key) / "attributions")[:12]
        scores = [item.content_scores for item in items]
        tops.append([set(np.argsort(-each, kind="stable")[: ceil(len(each) / 4)]) for each in scores])

    def pair(one, other):
        return np.mean([len(a & b) / len(a | b) for a, b in zip(tops[one], tops[other], strict=True)])

    by_run = [np.mean([pair(one, other) for other in range(3) if other != one]) for one in range(3)]
    table = make_study_table(results, "alike")
    assert table.rows == ["ATT", "moved"]
    assert table.columns == ["dev", "test"]
    assert table.center[0, 1] == pytest.approx(np.mean(by_run))
    assert table.high[0, 1] - table.center[0, 1] == pytest.approx(np.std(by_run, ddof=1))
    (matrix,) = make_agreement_matrices(results, results.study.figures["seeds"])
    assert matrix.columns == ["seed 0", "seed 1", "seed 2"]
    assert np.diag(matrix.values) == pytest.approx([1, 1, 1])
    assert (matrix.values == matrix.values.T).all()


def test_gains_are_relative_to_the_named_row_and_means_over_fields_come_after(results):
    table = make_study_table(results, "gains")
    values = results.figures.query("recipe == 'Student' and metric == 'A-S'")
    value = values.set_index(["seed", "dataset", "explainer"])["value"].unstack("explainer")
    by_dataset = value.groupby("dataset")["ATT"].mean()
    gain = -100 * (value["moved"] - by_dataset) / by_dataset.abs()
    assert table.center[1, 1] == pytest.approx(gain.groupby("seed").mean().mean())
    assert table.high[1, 1] - table.center[1, 1] == pytest.approx(gain.groupby("seed").mean().std())
    assert table.center[0] == pytest.approx([0, 0], abs=1e-9)
    assert table.columns == ["A-C ↑", "A-S ↑"]
    matrix = make_table_matrix(results, results.study.figures["gains"])
    assert matrix.limit == pytest.approx(np.abs(table.center).max())


def test_lines_over_numbers_in_names_and_over_steps(results):
    figures = results.study.figures
    att, moved = make_sweep_curves(results, figures["rate"])
    assert (att.method, moved.method) == ("ATT", "moved")
    assert list(att.x) == [20]
    expected = results.figures.query("recipe == 'Student' and metric == 'A-C' and dataset == 'test'")
    assert att.mean[0] == pytest.approx(expected.query("explainer == 'ATT'")["value"].mean())
    (line,) = make_history_curves(results, figures["losses"])
    assert list(line.x) == [2]
    losses = results.figures.query("recipe == 'Student' and metric == 'dev_cross_entropy'")["value"]
    assert line.mean[0] == pytest.approx(losses.mean())


BAD = [
    ('{run}/explainer", teacher', '{run}/explainer", student', "not run with the seed 7"),
    ('/explainer", teacher', '/explainer", fresh.at(training="teaching")', "unknown training of FRESH 'teaching'"),
    ('"ATT": "attention_last"', '"ATT": Explainer("attention_last", student)', "takes nothing"),
    ('"learned": "parameterized', '"learned": "parametrised', "unknown learned method"),
    ('"again", [continued, taken], test', '"again", [continued, taken], test, protocol="x"', "unknown proto"),
    ("**how)\n    study.compare", "rato=0.4)\n    study.compare", "unknown option"),
    ('"fraction": 0.4}', '"fraction": 0.4, "suport": 1}', "unknown parameter of fresh 'suport'"),
    ('"students", TOP)', '"students", "jacard")', "unknown measure 'jacard'"),
    ('"students", TOP)', '"students", "jaccard?part=1")', "unknown parameter of jaccard"),
    ('over="dataset"', 'over="dataset", significance=Significance("ATT")', "have no test"),
    ('"A-C": "ATT"', '"A-C": "AT"', "unknown recipe, explainer, training or model 'AT'"),
    ('table="gains"', 'table="gain"', "unknown table 'gain'"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[message for *_, message in BAD])
def test_a_run_that_cannot_be_meant_is_named_with_its_line(results, tmp_path, old, new, message):
    text = FILE.read_text()
    assert text.count(old) >= 1
    path = tmp_path / "bad.py"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ExpoundError) as raised:
        load_study(path)
    assert message in str(raised.value)
    assert re.match(rf"{re.escape(str(path))}:\d+: ", str(raised.value))
