"""Differences between two models, on the same examples by the same methods."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.cli import main

METHODS, METRICS = ["saliency", "random"], ["sufficiency", "important_tokens"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("old", 0), ("new", 1)):
        tiny = families.tiny("bert", num_labels=2, id2label={0: "negative", 1: "positive"})
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weights in tiny.parameters():
                weights.add_(torch.randn(weights.shape, generator=generator), alpha=0.2)
        tiny.save_pretrained(folder / name)
        families.tokenizer("bert").save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def data():
    return expound.load_data("generated", "dev", limit=30)


@pytest.fixture(scope="module")
def comparisons(models, data):
    return {name: expound.compare(expound.load(models / name), data, METHODS, METRICS) for name in ("old", "new")}


def test_differences_are_those_of_the_paired_examples(comparisons):
    changes = comparisons["new"].difference(comparisons["old"]).set_index(["method", "metric"])
    assert list(changes.index) == [(method, metric) for method in METHODS for metric in METRICS]
    frames = [comparisons[name].results.set_index("method") for name in ("old", "new")]
    for (method, metric), row in changes.iterrows():
        old, new = (frame.loc[method, metric].to_numpy() for frame in frames)
        assert row["difference"] == pytest.approx((new - old).mean())
        assert (row["before"], row["after"]) == pytest.approx((old.mean(), new.mean()))
        assert row["low"] <= row["difference"] <= row["high"]
        draws = np.random.default_rng(7).integers(30, size=(4000, 30))
        means = (new - old)[draws].mean(1)
        assert (row["low"], row["high"]) == pytest.approx(
            np.percentile(means, [2.5, 97.5]).tolist(), abs=float(0.1 * np.ptp(means))
        )
        assert row["examples"] == 30
        assert np.isnan(row["p"]) == (method == "random")


def test_nothing_changed_against_itself(comparisons):
    changes = comparisons["new"].difference(comparisons["new"])
    assert (changes["difference"] == 0).all()
    assert changes["p"].dropna().tolist() == [1, 1]


def test_a_shift_is_found_and_p_values_are_holms(comparisons):
    moved = comparisons["old"].results.assign(sufficiency=lambda rows: rows["sufficiency"] + 0.5)
    other = expound.Comparison(
        moved, comparisons["old"].curves, comparisons["old"].attributions, comparisons["old"].cards,
        comparisons["old"].examples, comparisons["old"].config,
    )  # fmt: skip
    changes = other.difference(comparisons["old"])
    assert changes[changes["metric"] == "sufficiency"]["p"].tolist() == pytest.approx([2 / 2001, np.nan], nan_ok=True)
    assert changes[changes["metric"] == "important_tokens"]["p"].dropna().tolist() == [1]


def test_other_examples_or_nothing_in_common_are_refused(comparisons, models, data):
    model = expound.load(models / "new")
    fewer = expound.compare(model, data.select(range(5)), METHODS, METRICS)
    with pytest.raises(ExpoundError, match="different examples"):
        fewer.difference(comparisons["old"])
    other = expound.compare(model, data, ["occlusion"], METRICS)
    with pytest.raises(ExpoundError, match="no method and metric with the same settings"):
        other.difference(comparisons["old"])
    labeled = expound.compare(model, data, METHODS, METRICS, target="label")
    with pytest.raises(ExpoundError, match="one comparison explains label, the other predicted"):
        labeled.difference(comparisons["old"])


def test_the_command_compares_against_a_folder_or_a_model(models, tmp_path, capsys):
    def run(folder, *more):
        words = ("compare", "--data", "generated", "--split", "dev", "--limit", "12", "--methods", "saliency,random",
                 "--metrics", "sufficiency", "--quiet", "--output-dir", folder, *more)  # fmt: skip
        code = main([str(word) for word in words])
        return code, capsys.readouterr()

    assert run(tmp_path / "old", "--model", models / "old")[0] == 0
    code, shown = run(tmp_path / "new", "--model", models / "new", "--against", tmp_path / "old")
    assert code == 0
    assert "of 1 differences are significant" in shown.out
    assert f"before: {tmp_path / 'old'}; after: {models / 'new'}".replace(" ", "") in "".join(shown.out.split())
    page = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert (
        page.index("of 1 differences are significant")
        < page.index("What changed</h2>")
        < page.index("explains best</h2>")
    )
    written = pd.read_csv(tmp_path / "new" / "difference.csv")
    assert list(written["method"]) == ["saliency", "random"]
    assert run(tmp_path / "both", "--model", models / "new", "--against", models / "old")[0] == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "both" / "difference.csv"), written)

    code, shown = run(tmp_path / "new", "--model", models / "old")
    assert (code, "--overwrite" in shown.err) == (2, True)
    (tmp_path / "new" / "mine.txt").write_text("kept")
    assert run(tmp_path / "new", "--model", models / "old", "--overwrite")[0] == 0
    assert {"mine.txt", "report.html"} <= {file.name for file in (tmp_path / "new").iterdir()}
    assert not (tmp_path / "new" / "difference.csv").exists()
    record = models / "new" / "expound_run.json"
    record.write_text(json.dumps({"config": {"recipe": "baseline"}}))
    run(models / "new", "--model", models / "new", "--overwrite")
    assert json.loads(record.read_text())["config"] == {"recipe": "baseline"}
