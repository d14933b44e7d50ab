"""Studies of language models: answers, citations, what training changed, promises."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import expound
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.metrics.faithfulness.ablation import Lds
from expound.training.citations import calibrate_bounds, measure_citations, summarize_bounds
from expound_papers.answering_model import train_answering_model
from expound_papers.protocols.registry import check_protocol, run_protocol
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.run_files import FIGURES, RESULTS
from expound_papers.runs.store import Store
from expound_papers.study import Data, Explainer, Model, Training
from expound_papers.study.loading import record_study
from expound_papers.tables.results import collect_results
from expound_papers.tables.tables import make_study_table

NOTES = "generated?task=retrieval&size=24"


@pytest.fixture(scope="module")
def study_runs(tmp_path_factory):
    """A study of two barely trained models, one for each seed, with all of its runs done; its store and its folder."""
    root = tmp_path_factory.mktemp("study")
    for seed in range(2):
        train_answering_model(root / f"base-{seed}", seed=seed, device="cpu", scale=0.001)

    def record(study):
        study.seeds, study.arguments = 2, {"warmup_steps": 7}
        lessons = Data("lessons", NOTES, split="train", limit=4)
        redundant = Data("redundant", f"{NOTES}&kind=redundant", limit=2)
        notes = Training("notes", lessons, lessons.but("dev", split="dev", limit=2))
        base = Model("base", str(root / "base-{seed}" / "model"))
        frozen = study.train("frozen", None, notes, base)
        arguments = {"max_steps": 1, "learning_rate": 1e-2, "warmup_steps": None}
        plain = study.train("plain", "baseline", notes, base, seeds=[0], arguments=arguments)
        how = {"task": "generation", "unit": "source", "n_samples": 3}
        fitted = study.train("fitted", "at2", notes, base, arguments={"max_steps": 2, "warmup_steps": None}, **how)
        explainers = {"IxG": "input_x_gradient", "gone": "occlusion?output=log_prob"}
        metrics = {"LDS": "lds?n_samples=6", "ρ": "lds?ablation=leave_one_out", "AUC": "rationale_auc"}
        study.judge("citations", frozen, redundant, explainers, metrics, unit="source")
        at2 = {"AT2": Explainer("attention_to_source:{run}", fitted)}
        study.judge("fit", frozen, redundant, at2, {"LDS": metrics["LDS"]}, unit="source")
        study.judge("drift", [frozen, plain], redundant, protocol="drift", original=frozen, n_samples=5)
        study.judge("short drift", plain, redundant, protocol="drift", original=frozen, n_samples=3)
        study.table(
            "drift", "", rows="judgement", columns="model", where={"recipe": "plain"}, metrics="ablation_agreement"
        )

    study, store = record_study(record, "study"), Store(root / "store")
    for cell in study.cells:
        assert run_cell(cell, store.root)
    return study, store, root


def find_run_folder(study_runs, **where):
    study, store, _ = study_runs
    (run,) = [run for run in study.runs if all(getattr(run, name) == value for name, value in where.items())]
    return store.cell_folder(run.cell.key)


def test_each_seed_has_its_model_and_citations_are_what_compare_says(study_runs):
    data = expound.load_data(NOTES, "test", kind="redundant", limit=2)
    assert set(data["kind"]) == {"redundant"}
    seen = []
    for seed in range(2):
        folder = find_run_folder(study_runs, recipe="frozen", judgement="citations", seed=seed)
        found = pd.read_parquet(folder / RESULTS)
        model = expound.load(study_runs[2] / f"base-{seed}" / "model", task="generation", device="cpu")
        methods = {each: each for each in ("input_x_gradient", "occlusion?output=log_prob")}
        metrics = ["lds?n_samples=6", "lds?ablation=leave_one_out", "rationale_auc"]
        table = expound.compare(model, data, methods, metrics, unit="source", seed=seed).results
        pd.testing.assert_frame_equal(found[metrics], table[[*metrics[:2], "rationale_auc"]].set_axis(metrics, axis=1))
        assert json.loads((folder / FIGURES).read_text())["accuracy"] == 0
        seen.append(found[metrics[0]].tolist())
    assert seen[0] != seen[1]


def test_scores_that_are_the_falls_agree_with_leaving_one_out(study_runs):
    found = pd.read_parquet(find_run_folder(study_runs, recipe="frozen", judgement="citations", seed=0) / RESULTS)
    own = found[found["method"].str.startswith("occlusion")]["lds?ablation=leave_one_out"]
    np.testing.assert_allclose(own, 1, atol=1e-6)


def test_what_is_fitted_to_a_frozen_model_explains_it(study_runs):
    found = pd.read_parquet(find_run_folder(study_runs, recipe="frozen", judgement="fit", seed=0) / RESULTS)
    model = expound.load(study_runs[2] / "base-0" / "model", task="generation", device="cpu")
    data = expound.load_data(NOTES, "test", kind="redundant", limit=2)
    fitted = f"attention_to_source:{find_run_folder(study_runs, recipe='fitted', seed=0)}"
    table = expound.compare(model, data, {"own": fitted}, ["lds?n_samples=6"], unit="source", seed=0).results
    assert found["lds?n_samples=6"].tolist() == table["lds"].tolist()


def test_drift_is_the_correlation_of_answers_on_the_same_sets(study_runs):
    same = json.loads((find_run_folder(study_runs, recipe="frozen", judgement="drift", seed=0) / FIGURES).read_text())
    assert same["ablation_agreement"] == pytest.approx(1, abs=1e-6)
    found = json.loads((find_run_folder(study_runs, recipe="plain", judgement="drift") / FIGURES).read_text())[
        "ablation_agreement"
    ]
    folders = (study_runs[2] / "base-0" / "model", find_run_folder(study_runs, recipe="plain", judgement=""))
    models = [expound.load(folder, task="generation", device="cpu") for folder in folders]
    sets, values = Lds(unit="source", perturbation="remove", n_samples=5), []
    for row in expound.load_data(NOTES, "test", kind="redundant", limit=2):
        there = sets.draw_sets(torch.tensor([6]))[:, 0]
        answers = []
        for model in models:
            batch = model.encode([row])
            unit = sets.units(batch)
            keep = there.gather(1, unit.clamp(min=0).expand(len(there), -1)) | (unit < 0)
            with torch.no_grad():
                tokens = model.predict_perturbed(batch, keep[:, None])[..., 0]
            answers.append(tokens.sum(-1)[:, 0].double().numpy())
        values.append(np.corrcoef(*answers)[0, 1])
    assert found == pytest.approx(np.mean(values), abs=1e-5)
    assert found < 1


def test_a_table_has_a_row_for_each_judgement_of_the_same_runs(study_runs):
    study, store, _ = study_runs
    table = make_study_table(collect_results(study, store), "drift")
    assert table.rows == ["drift", "short drift"]
    for row, judgement in enumerate(table.rows):
        figures = json.loads((find_run_folder(study_runs, recipe="plain", judgement=judgement) / FIGURES).read_text())
        assert table.center[row, 0] == pytest.approx(figures["ablation_agreement"])


def test_null_leaves_an_argument_of_the_whole_study_to_the_recipe(study_runs):
    (run,) = [each for each in study_runs[0].runs if each.recipe == "plain" and not each.judgement]
    assert run.cell.config["arguments"]["warmup_steps"] == 0.06  # the recipe's own
    assert run.cell.config["arguments"]["max_steps"] == 1


def test_promises_are_calibrated_on_one_set_and_held_against_another(study_runs, tmp_path):
    model = expound.load(study_runs[2] / "base-0" / "model", task="generation", device="cpu")
    TrainedCitation(expound.explainer("decompx_linear"), "source", 0.1).save_pretrained(tmp_path, "decompx_linear")
    known, asked = (expound.load_data(NOTES, split) for split in ("dev", "test"))
    options = {"citation": str(tmp_path), "calibration": known, "error_rate": 0.4}
    check_protocol("promises", options)
    found = run_protocol("promises", model, asked, options)
    cited = TrainedCitation.from_pretrained(tmp_path)
    made = calibrate_bounds([measure_citations(model, cited, row, "remove") for row in known], 0.4)
    pairs = [
        (each, made.lower_bounds(each.scores))
        for each in (measure_citations(model, cited, row, "remove") for row in asked)
    ]
    expected = summarize_bounds(pairs)
    assert [*found.values()] == pytest.approx(
        [expected["held"], expected["promised"], expected["bounded"]], nan_ok=True
    )
    told = [row for each, bounds in pairs for row in (each.falls >= bounds)[~np.isnan(bounds)]]
    assert found["promise_prompts"] == sum((~np.isnan(bounds)).any() for _, bounds in pairs)
    assert not told or 0 <= found["promise_held"] <= 1
