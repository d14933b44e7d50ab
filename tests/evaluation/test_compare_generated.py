"""Comparisons of explanations of generated text: on sources, with evidence, saved and loaded."""

import json

import numpy as np
import pytest
import torch

import expound
from chats import CHAT, chatting
from expound import ExpoundError
from expound.cli import main
from expound.evaluation.compare.comparison import Comparison
from expound.explainers.base import resolve_unit
from expound.metrics.faithfulness.unit_aopc import UnitComprehensiveness, UnitSufficiency

OTHER = CHAT | {"sources": {"a": "the cat is here .", "b": "a film", "c": "women laugh"}, "response": " it is long"}
ROWS = [CHAT | {"evidence": ["doc 1"], "kind": "one"}, OTHER | {"evidence": ["c", "b"], "kind": "two"}]
METHODS = ["random", "occlusion", "input_x_gradient"]


@pytest.fixture(scope="module")
def model():
    return chatting()


@pytest.fixture(scope="module")
def result_and_folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return expound.compare(model, ROWS, METHODS, output_dir=folder), folder


def source_scores(model, row, method):
    (found,) = expound.attribute(model, [row], method, unit="source")
    return found.scores[0]


@pytest.mark.parametrize("method", METHODS)
def test_evidence_is_recovered_by_the_scores_of_sources(model, result_and_folder, method):
    results = result_and_folder[0].results
    for number, marked in enumerate(([1, 0], [0, 1, 1])):
        scores, gold = source_scores(model, ROWS[number], method), np.array(marked, bool)
        row = results[(results["method"] == method) & (results["example"] == number)].iloc[0]
        pairs = np.sign(scores[gold][:, None] - scores[~gold][None])
        assert row["rationale_auc"] == pytest.approx((pairs.mean() + 1) / 2)
        first = np.argsort(-scores, kind="stable")[: gold.sum()]
        assert row["recall_at_k"] == pytest.approx(gold[first].mean())


def test_the_answer_falls_as_if_the_source_had_not_been_there(model, result_and_folder):
    results, batch = result_and_folder[0].results, model.encode([OTHER])
    first = int(np.argmax(source_scores(model, OTHER, "input_x_gradient")))
    keep = (batch.unit_of != first)[None]
    with torch.no_grad():
        whole, without = (
            model.predict_perturbed(batch, each)[0, 0, :, 0].sum() for each in (torch.ones_like(keep), keep)
        )
    row = results[(results["method"] == "input_x_gradient") & (results["example"] == 1)].iloc[0]
    assert row["topk_drop"] == pytest.approx(float(whole - without), rel=1e-5)


@pytest.mark.parametrize("metric", [UnitComprehensiveness, UnitSufficiency])
def test_areas_over_sources_are_means_of_falls(model, metric):
    batch = model.encode([OTHER])
    target = torch.tensor([[0, 1]])
    scores = torch.where(batch.unit_of == 1, 3.0, torch.where(batch.unit_of == 2, 1.0, 0.0)).double()
    found = metric(unit="source", perturbation="remove", k=2).evaluate(model, batch, scores, target)[metric.card.name]
    order, unit = (1, 2, 0), batch.unit_of
    falls = []
    for k in (1, 2):
        away = order[:k] if metric is UnitComprehensiveness else order[k:]
        keep = ~torch.isin(unit, torch.tensor(away))[None]
        with torch.no_grad():
            p = [model.predict_perturbed(batch, each)[0, 0, 0, 0].exp() for each in (torch.ones_like(keep), keep)]
        falls.append(float(p[0] - p[1]))
    assert float(found) == pytest.approx(np.mean(falls), rel=1e-5)
    assert abs(float(found)) > 1e-9


def test_what_is_kept_comes_back(result_and_folder):
    comparison, folder = result_and_folder
    loaded = Comparison.load(folder)
    assert [row["kind"] for row in loaded.examples] == ["one", "two"]
    assert loaded.examples[1]["sources"] == OTHER["sources"]
    page = (folder / "report.html").read_text()
    assert "women" in page
    assert comparison.attributions[0].target.text == CHAT["response"].strip()


def test_units_and_methods(model, result_and_folder):
    with pytest.raises(ExpoundError, match="unknown source in evidence 'doc 9'"):
        model.encode([CHAT | {"evidence": ["doc 9"]}])
    known = model.encode([*ROWS, CHAT])
    assert known.has_rationale.tolist() == [True, True, False]
    assert (known.rationale_mask[2] == 0).all()
    assert result_and_folder[0].config["unit"] == "source"
    assert result_and_folder[0].config["metrics"]["lds"]["unit"] == "source"
    chosen, unit = resolve_unit(model, "occlusion", "sentence", {})
    assert (chosen.params["unit"], unit) == ("sentence", "sentence")


def test_the_command_line_reads_chats_from_a_file(tmp_path, capsys):
    model = chatting(dtype=torch.float32)
    model.model.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    options = ["--split", "all", "--methods", "random,occlusion", "--output-dir", str(tmp_path / "out"), "--quiet"]
    data = ["--data", f"jsonl:{tmp_path}/chats.jsonl", "--model", str(tmp_path / "model")]
    assert main(["compare", "--task", "generation", *data, *options]) == 0, capsys.readouterr().err
    found = Comparison.load(tmp_path / "out")
    assert {"rationale_auc", "recall_at_k", "topk_drop", "lds", "unit_sufficiency"} <= set(found.results.columns)
    assert found.results["rationale_auc"].notna().all()
