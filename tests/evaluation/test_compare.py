"""The whole comparison: the files that it stores, and that no result is lost when it is stopped."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import pandas as pd
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.data.atomic_files import temporary_path
from expound.evaluation.compare.judge import JudgedExamples
from expound.evaluation.compare.shards import ComparisonParts
from expound.explainers import EXPLAINERS
from expound.models.encoding.encode import make_batches
from expound.reports.explanations import Explanations
from expound.reports.tables.board_table import format_verdict
from forks import forge
from small import small

METHODS = ["random", "input_x_gradient", "occlusion"]
METRICS = ["comprehensiveness", "sufficiency", "rationale_auc"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    families.tiny("bert", num_labels=2, id2label={0: "negative", 1: "positive"}).save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data():
    return expound.load_data("generated", "dev", limit=40)


def test_one_row_an_example_and_method_with_a_column_a_metric(model_folder, data, tmp_path):
    found = expound.compare(expound.load(model_folder), data, METHODS, METRICS, output_dir=tmp_path)
    stored = pd.read_parquet(tmp_path / "results.parquet")
    assert len(stored) == 40 * 3
    assert set(METRICS) | {"example", "method", "target", "prediction", "seconds", "peak_memory"} <= set(stored.columns)
    assert {"table.csv", "table.tex", "report.html", "expound_run.json"} <= {file.name for file in tmp_path.iterdir()}
    assert not (tmp_path / ".parts").exists()
    attributions = Explanations.load(tmp_path / "attributions")
    assert [item.index for item in attributions] == list(range(40)) * 3
    pd.testing.assert_frame_equal(stored, found.results)


def test_the_report_of_a_model_in_half_precision_says_so(model_folder, data, tmp_path):
    half = expound.load(model_folder, dtype="bfloat16")
    expound.compare(half, data.select(range(2)), ["random"], ["rationale_auc"], output_dir=tmp_path)
    report = (tmp_path / "report.html").read_text()
    assert "bfloat16: small differences of scores need a model in float32" in report


def test_the_report_names_model_data_split_and_accuracy(model_folder, data, tmp_path):
    model, few = expound.load(model_folder), data.select(range(8))
    found = expound.compare(model, few, ["random"], ["rationale_auc"], output_dir=tmp_path)
    predicted = [item.prediction.value for item in found.attributions]
    right = sum(one == other for one, other in zip(predicted, few["label"], strict=True))
    top = (tmp_path / "report.html").read_text().split('class="facts subject"')[1].split("</p>")[0]
    shown = dict(re.findall(r"<span>(\w+) <strong>(.*?)</strong>", top))
    assert shown == {
        "model": str(model_folder),
        "data": "generated",
        "split": "dev",
        "accuracy": f"{right / 8:.3f} ({right} of 8 examples)",
    }
    # Where the same rows were read from does not make them other rows.
    few.info.description = "elsewhere"
    again = expound.compare(model, few, ["random"], ["rationale_auc"], output_dir=tmp_path)
    pd.testing.assert_frame_equal(again.results, found.results)


def test_a_checkpoint_folder_keeps_batches_and_gets_no_report(model_folder, data, tmp_path):
    model, few = expound.load(model_folder), data.select(range(8))
    first = expound.compare(model, few, METHODS, METRICS, checkpoint_dir=tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {".parts", "expound_run.json"}
    calls = []
    with model.model.register_forward_hook(lambda *_: calls.append(1)):
        again = expound.compare(model, few, METHODS, METRICS, checkpoint_dir=tmp_path)
    assert not calls
    pd.testing.assert_frame_equal(again.results, first.results)


def test_values_are_those_of_the_methods_and_metrics_alone(model_folder, data):
    model = expound.load(model_folder)
    found = expound.compare(model, data, METHODS, METRICS).results
    batch = model.encode(list(data)[:1])
    for method in METHODS:
        scores = expound.explainer(method).attribute(model, batch)
        for name in METRICS:
            value = expound.metric(name).evaluate(model, batch, scores.detach())[name]
            row = found[(found.method == method) & (found.example == 0)]
            np.testing.assert_allclose(row[name].item(), float(value), atol=1e-5)


def test_a_finished_comparison_is_not_done_again(model_folder, data, tmp_path):
    model = expound.load(model_folder)
    first = expound.compare(model, data, METHODS, METRICS, output_dir=tmp_path)
    calls = []
    with model.model.register_forward_hook(lambda *_: calls.append(1)):
        again = expound.compare(model, data, METHODS, METRICS, output_dir=tmp_path)
    assert not calls
    pd.testing.assert_frame_equal(again.results, first.results)
    assert list(again.attributions) == list(first.attributions)


def compare_slowly(folder, output):
    torch.set_num_threads(1)
    model = expound.load(folder)
    model.model.register_forward_hook(lambda *_: time.sleep(0.02))
    data = expound.load_data("generated", "dev", limit=40)
    expound.compare(model, data, METHODS, METRICS, output_dir=output, batch_size=4)


def test_killed_half_way_it_goes_on_where_it_stopped(model_folder, data, tmp_path):
    parts = tmp_path / ".parts"
    with forge() as process:
        process.start(compare_slowly, model_folder, tmp_path)
        while len(list(parts.glob("[0-9]*"))) < 3:
            assert process.running(0.01), "the comparison ended before it could be killed"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    finished = list(parts.glob("[0-9]*"))
    assert 3 <= len(finished) < 10

    model = expound.load(model_folder)
    explained = []
    encode = model.encode
    model.encode = lambda rows: (explained.append(len(rows)), encode(rows))[1]
    resumed = expound.compare(model, data, METHODS, METRICS, output_dir=tmp_path, batch_size=4)
    assert sum(explained) == 40 - 4 * len(finished)
    whole = expound.compare(model, data, METHODS, METRICS, batch_size=4).results
    measured = ["seconds", "peak_memory"]
    pd.testing.assert_frame_equal(resumed.results.drop(columns=measured), whole.drop(columns=measured))


def stop_comparison(model, data, folder, after, **options):
    """Starts a comparison that stops after this many batches."""
    left = iter(range(after))
    encode = model.encode
    model.encode = lambda rows: (next(left), encode(rows))[1]
    with pytest.raises(StopIteration):
        expound.compare(model, data, METHODS, METRICS, output_dir=folder, **options)
    model.encode = encode


@pytest.mark.parametrize(("first", "then"), [(None, 4), (4, 6)])
def test_stopped_it_goes_on_in_batches_of_another_size(model_folder, data, tmp_path, first, then):
    model = expound.load(model_folder)
    stop_comparison(model, data, tmp_path, 1, batch_size=first)
    found = expound.compare(model, data, METHODS, METRICS, output_dir=tmp_path, batch_size=then)
    whole = expound.compare(model, data, METHODS, METRICS, batch_size=then)
    measured = ["seconds", "peak_memory"]
    pd.testing.assert_frame_equal(found.results.drop(columns=measured), whole.results.drop(columns=measured))
    assert list(found.attributions) == list(whole.attributions)


def test_the_size_of_batches_belongs_to_a_metric_that_compares_examples(model_folder, data, tmp_path):
    model, few = expound.load(model_folder), data.select(range(6))
    expound.compare(model, few, ["random"], ["consistency"], output_dir=tmp_path / "c", batch_size=3)
    with pytest.raises(expound.ExpoundError, match=r"something else \(see batch_size in expound_run.json\)"):
        expound.compare(model, few, ["random"], ["consistency"], output_dir=tmp_path / "c")
    expound.compare(model, few, ["random"], ["sufficiency"], output_dir=tmp_path / "s", batch_size=3)
    expound.compare(model, few, ["random"], ["sufficiency"], output_dir=tmp_path / "s")


def test_one_metric_with_two_settings_has_two_columns(model_folder, data):
    metrics = ["sufficiency", "sufficiency?fraction=0.5", "rationale_auc"]
    found = expound.compare(expound.load(model_folder), data.select(range(4)), ["random"], metrics)
    assert [card.name for card in found.cards[:3]] == metrics
    assert not found.results["sufficiency"].equals(found.results["sufficiency?fraction=0.5"])


def test_one_name_for_two_is_no_name(model_folder, data):
    model, few = expound.load(model_folder), data.select(range(4))
    two = [expound.explainer("integrated_gradients", n_steps=n) for n in (2, 3)]
    with pytest.raises(expound.ExpoundError, match=r"two methods are called integrated_gradients.*ID\?NAME=VALUE"):
        expound.compare(model, few, two, ["sufficiency"])
    with pytest.raises(expound.ExpoundError, match="two metrics are called sufficiency"):
        expound.compare(model, few, ["random"], [expound.metric("sufficiency", fraction=each) for each in (0.1, 0.5)])
    found = expound.compare(model, few, {"few": two[0], "more": two[1]}, ["sufficiency"] * 2)
    assert list(found.to_pandas().index) == ["few", "more"]
    assert len(expound.compare(model, few, ["random", "random"], ["sufficiency"]).results) == 4


def test_an_explainer_that_was_trained_again_is_another_one(model_folder, data, tmp_path):
    model, few = expound.load(model_folder), data.select(range(4))
    learned = EXPLAINERS["interpretable_attention"].for_model(model)
    learned.save_pretrained(tmp_path / "learned")
    spec = f"interpretable_attention:{tmp_path / 'learned'}"
    expound.compare(model, few, [spec], ["sufficiency"], output_dir=tmp_path / "out")
    expound.compare(model, few, [spec], ["sufficiency"], output_dir=tmp_path / "out")
    with torch.no_grad():
        next(learned.parameters()).mul_(2)
    learned.save_pretrained(tmp_path / "learned")
    with pytest.raises(expound.ExpoundError, match=r"something else \(see methods in"):
        expound.compare(model, few, [spec], ["sufficiency"], output_dir=tmp_path / "out")


def test_what_another_process_has_done_meanwhile_stays(model_folder, data, tmp_path):
    model, few = expound.load(model_folder), data.select(range(4))
    encode, other_results = model.encode, []

    def slow(rows):
        if not other_results:
            other_results.append(
                expound.compare(
                    expound.load(model_folder), few, ["random"], ["rationale_auc"], output_dir=tmp_path / "other"
                )
            )
            parts = ComparisonParts(tmp_path / "out", other_results[0].config)
            parts[[int(index) for index in order]] = JudgedExamples(
                other_results[0].results, other_results[0].curves, other_results[0].attributions
            )
        return encode(rows)

    order = next(make_batches(model, list(few)))
    model.encode = slow
    found = expound.compare(model, few, ["random"], ["rationale_auc"], output_dir=tmp_path / "out")
    measured = ["seconds", "peak_memory"]
    pd.testing.assert_frame_equal(found.results.drop(columns=measured), other_results[0].results.drop(columns=measured))


def test_damaged_results_are_named(model_folder, data, tmp_path):
    model, few = expound.load(model_folder), data.select(range(4))
    expound.compare(model, few, ["random"], ["sufficiency"], output_dir=tmp_path)
    (tmp_path / "results.parquet").write_bytes(b"PA")
    with pytest.raises(expound.ExpoundError, match="is damaged"):
        expound.compare(model, few, ["random"], ["sufficiency"], output_dir=tmp_path)
    with pytest.raises(expound.ExpoundError, match="is damaged"):
        expound.Comparison.load(tmp_path)


@pytest.mark.parametrize("label", [7, -1])
def test_a_label_that_the_model_does_not_have(model_folder, tmp_path, label):
    with pytest.raises(expound.ExpoundError, match=r"does not know the label.*1 \(positive\)"):
        expound.compare(
            expound.load(model_folder), [{"text": "a film", "label": label}], ["random"], output_dir=tmp_path
        )
    assert not list(tmp_path.iterdir())


def test_nothing_to_compare(model_folder, data, tmp_path):
    model = expound.load(model_folder)
    with pytest.raises(expound.ExpoundError, match="no method"):
        expound.compare(model, data, [], output_dir=tmp_path)
    with pytest.raises(expound.ExpoundError, match="no example"):
        expound.compare(model, data.select([]), METHODS, output_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_plausibility_by_layer_ends_in_that_of_the_method(model_folder, data):
    found = expound.compare(expound.load(model_folder), data, ["random", "alti"], ["rationale_auc"])
    layers = found.curves[found.curves["metric"] == "AUC by layer"]
    assert set(layers["method"]) == {"alti"}
    assert set(layers["x"]) == {1, 2}
    last = layers[layers["x"] == 2].set_index("example")["value"].sort_index()
    whole = found.results[found.results["method"] == "alti"].set_index("example")["rationale_auc"].sort_index()
    np.testing.assert_allclose(last, whole, atol=1e-6)
    assert "AUC by layer" in found.to_html()


def test_pairs_and_texts_without_rationales(model_folder):
    pairs = [("a moving film", "a film"), ("the plot is dull", "nobody laughs at the plot")]
    found = expound.compare(expound.load(model_folder), pairs, ["attention_last"], seed=3)
    assert "rationale_auc" not in found.results.columns
    assert found.results["aopc_sufficiency"].notna().all()
    assert ">nobody</" in found.to_html()


def test_the_finishing_run_sweeps_what_killed_ones_left(tmp_path):
    model = small("bert")
    expound.compare(model, ["a film"], ["random"], ["important_tokens"], output_dir=tmp_path)
    dead = tmp_path / temporary_path(tmp_path / "examples.parquet").name.replace(f"-{os.getpid()}-", "-999999999-")
    (tmp_path / ".parts" / "0-1").mkdir(parents=True)
    dead.touch()
    expound.compare(model, ["a film"], ["random"], ["important_tokens"], output_dir=tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_text_of_a_comparison_displays_nothing_in_a_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *table: shown.append(table))
    found = expound.compare(small("bert"), ["a film"], ["random"], ["important_tokens"])
    assert "Random" in repr(found)
    assert shown == []


def test_a_comparison_shows_itself(model_folder, data):
    model, rows = expound.load(model_folder), data.select(range(6))
    with pytest.raises(ExpoundError, match="no curves"):
        expound.compare(model, rows, ["random"], ["sufficiency"]).plot()
    found = expound.compare(model, rows, ["random", "saliency"], ["aopc_sufficiency"])
    sentence = format_verdict(found.leaderboard)
    assert repr(found).startswith(f"{sentence}\n")
    assert "Saliency" in repr(found)
    assert found.to_markdown().startswith(f"{sentence}\n\n| method |")
    assert found._repr_html_().count('<th scope="row"') == 2
    page = found._repr_html_()
    assert '<span class="interval">' in page
    # Rules of a fragment must not reach the notebook around it.
    style = page[page.index("<style>") + 7 : page.index("</style>")]
    selectors = re.findall(r"([^{}]+)\{", style)
    assert all(".expound" in each or "@media" in each for each in selectors)
    assert r"\caption{On 6 examples" in found.to_latex()
    assert "Seconds" not in found.to_latex()
    figure = found.plot()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["Random", "Saliency"]
