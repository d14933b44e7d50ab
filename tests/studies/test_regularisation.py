"""The analyses of guidance, against sklearn, SciPy, matrix products and planted answers."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

import exegete
import families
from exegete.models import Capture, ExplainedModel
from exegete.studies.regularisation import (
    OVERALL,
    TECHNIQUES,
    across,
    explained,
    foretells,
    layer_scores,
    weight_sweep,
    within,
)


@pytest.fixture(scope="module")
def model():
    from exegete.data import generated_tokenizer

    tokenizer = generated_tokenizer()
    return ExplainedModel(families.tiny("bert", num_labels=2, vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def data():
    return exegete.load_data("generated?size=40", "train").select(range(12))


@pytest.fixture(scope="module")
def said(model, data):
    return explained(model, data, layers=True, batch_size=5)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_plausibility_is_sklearns_over_all_positions_special_ones_included(model, data, said, technique):
    own = said.plausibility[(said.plausibility["method"] == technique) & (said.plausibility["layer"] == OVERALL)]
    assert own["example"].tolist() == list(range(12))
    for row, (_, found) in zip(data, own.iterrows(), strict=True):
        batch = model.encode([row])
        gold = batch.rationale[0].numpy()
        with torch.no_grad():
            method = exegete.explainer(technique)
            scores = method.everywhere(model, batch, batch.labels).scores[0].abs().numpy()
        assert (scores[[0, -1]] != 0).any()
        assert found["auc"] == pytest.approx(roc_auc_score(gold, scores), abs=1e-5)
        assert found["average_precision"] == pytest.approx(average_precision_score(gold, scores), abs=1e-5)
        best = np.argsort(-scores, kind="stable")[: gold.sum()]
        assert found["recall_at_k"] == pytest.approx(gold[best].mean(), abs=1e-5)
        np.testing.assert_allclose(said.scores[technique][int(found["example"])], scores, atol=1e-5)


def test_layers_of_attention_and_rollout_are_products_of_the_matrices(model, data):
    batch = model.encode(list(data.select([0, 3])))
    with torch.no_grad():
        attentions = [layer.mean(1) for layer in model(batch, capture=Capture(attentions=True)).attentions]
        by_layer = layer_scores(model, batch, exegete.explainer("attention_last"))
        rolled = layer_scores(model, batch, exegete.explainer("attention_rollout"))
    product = torch.eye(batch.length)
    for number, layer in enumerate(attentions):
        torch.testing.assert_close(by_layer[:, number], layer[:, 0])
        product = (layer + torch.eye(batch.length)) / 2 @ product
        torch.testing.assert_close(rolled[:, number], product[:, 0])
    for technique, layers in (("attention_last", by_layer), ("attention_rollout", rolled)):
        with torch.no_grad():
            whole = exegete.explainer(technique).everywhere(model, batch, batch.labels).scores
        torch.testing.assert_close(layers[:, -1], whole)


def test_every_layer_is_judged(said):
    layers = said.plausibility.groupby("method")["layer"].unique()
    assert set(layers["attention_last"]) == set(layers["alti"]) == {OVERALL, 0, 1}
    assert set(layers["input_x_gradient"]) == {OVERALL}


def fake(generator, noise=0.0, base=None):
    """Scores of five examples by two techniques, near `base`."""
    made = {name: [generator.normal(size=12) for _ in range(5)] for name in ("a", "b")}
    if base is None:
        return made
    return {n: [old + noise * new for old, new in zip(base[n], made[n], strict=True)] for n in made}


def test_agreement_across_approaches_has_the_seeds_own_noise_as_its_floor():
    generator = np.random.default_rng(0)
    base = fake(generator)
    near = [fake(generator, 0.05, base) for _ in range(3)]
    other = [{"a": near[i]["a"], "b": fake(generator)["b"]} for i in range(3)]
    table = across({"baseline": near, "other": other})
    means = table.groupby(["approach", "method"])["tau"].mean()
    assert means["baseline", "a"] > 0.85 < means["other", "a"]
    assert abs(means["other", "b"]) < 0.4
    assert table["tau"].max() < 1
    assert len(table) == 2 * 2 * 5
    again = across({"baseline": near, "other": other})
    pd.testing.assert_frame_equal(table, again)


def test_agreement_within_a_model_is_scipys():
    generator = np.random.default_rng(1)
    scores = fake(generator)
    table = within({"baseline": [scores]})
    expected = [kendalltau(a, b).statistic for a, b in zip(scores["a"], scores["b"], strict=True)]
    assert table["tau"].tolist() == pytest.approx(expected)


def test_what_foretells_is_spearmans():
    generator = np.random.default_rng(2)
    models = pd.DataFrame({"good": np.arange(9.0), "none": generator.normal(size=9), "flat": 1.0})
    models["f1"] = models["good"] ** 3
    table = foretells(models, "f1", ["good", "none", "flat"]).set_index("predictor")
    assert table.loc["good", "rho"] == pytest.approx(1)
    assert table.loc["none", "rho"] == pytest.approx(spearmanr(models["none"], models["f1"]).statistic)
    assert np.isnan(table.loc["flat", "rho"])
    assert table["models"].tolist() == [9, 9, 9]


def test_the_sweep_trains_one_model_a_weight_and_seed(tmp_path):
    train, dev = (exegete.load_data("generated?size=48", split) for split in ("train", "dev"))
    quick = {"num_train_epochs": 1, "per_device_train_batch_size": 16, "disable_tqdm": True, "use_cpu": True}
    table = weight_sweep(
        "tiny", train, dev, tmp_path, guide="attention", weights=(0, 100), seeds=(0, 1), arguments=quick
    )
    assert table[["weight", "seed"]].to_numpy().tolist() == [[0, 0], [0, 1], [100, 0], [100, 1]]
    metrics = json.loads((tmp_path / "attention-100-1" / "metrics.json").read_text())
    assert table.iloc[3]["explanation"] == metrics["explanation"]
    assert table.iloc[3]["explanation"] < table.iloc[1]["explanation"]
