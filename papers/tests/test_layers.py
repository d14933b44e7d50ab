"""Scores by layer against products of matrices, and plausibility over special tokens too against sklearn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import expound
import families
from expound.models import Capture, ExplainedModel
from expound_papers.runs.layer_plausibility import plausibility_by_layer

TECHNIQUES = ("attention_last", "attention_rollout", "input_x_gradient", "alti", "decompx_linear")
WHOLE = "?unit=token&special_tokens=true&absolute=true"


@pytest.fixture(scope="module")
def model():
    from expound.data import generated_tokenizer

    tokenizer = generated_tokenizer()
    return ExplainedModel(families.tiny("bert", num_labels=2, vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def data():
    return expound.load_data("generated?size=40", "train").select(range(12))


@pytest.fixture(scope="module")
def results(model, data):
    metrics = [f"{name}{WHOLE}" for name in ("rationale_auc", "average_precision", "recall_at_k")]
    return expound.compare(model, data, TECHNIQUES, metrics, target="label", batch_size=5, special_tokens=True).results


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_plausibility_is_sklearns_over_all_positions_special_ones_included(model, data, results, technique):
    own = results[results["method"] == technique]
    for row, (_, found) in zip(data, own.iterrows(), strict=True):
        batch = model.encode([row])
        gold = batch.rationale_mask[0].numpy()
        with torch.no_grad():
            method = expound.explainer(technique)
            scores = method.explain(model, batch, batch.labels, special_tokens=True).scores[0].abs().numpy()
        assert (scores[[0, -1]] != 0).any()
        assert found["rationale_auc"] == pytest.approx(roc_auc_score(gold, scores), abs=1e-5)
        assert found["average_precision"] == pytest.approx(average_precision_score(gold, scores), abs=1e-5)
        best = np.argsort(-scores, kind="stable")[: gold.sum()]
        assert found["recall_at_k"] == pytest.approx(gold[best].mean(), abs=1e-5)


def test_layers_of_attention_and_rollout_are_products_of_the_matrices(model, data):
    batch = model.encode(list(data.select([0, 3])))
    with torch.no_grad():
        attentions = [layer.mean(1) for layer in model(batch, capture=Capture(attentions=True)).attentions]
        attention_layers, rolled = (
            expound.explainer(name).explain(model, batch, "label", special_tokens=True).layers
            for name in ("attention_last", "attention_rollout")
        )
    product = torch.eye(batch.length)
    for number, layer in enumerate(attentions):
        torch.testing.assert_close(attention_layers[:, number], layer[:, 0])
        product = (layer + torch.eye(batch.length)) / 2 @ product
        torch.testing.assert_close(rolled[:, number], product[:, 0])
    for technique, layers in (("attention_last", attention_layers), ("attention_rollout", rolled)):
        with torch.no_grad():
            whole = expound.explainer(technique).explain(model, batch, batch.labels, special_tokens=True).scores
        torch.testing.assert_close(layers[:, -1], whole)


def test_every_layer_is_judged_and_the_last_is_the_method(model, data, results):
    spec = f"rationale_auc{WHOLE}"
    explainers = {name: name for name in ("attention_last", "attention_rollout", "input_x_gradient")}
    metrics = [spec, "aopc_sufficiency"]
    frame = plausibility_by_layer(model, data, explainers, metrics, "label", 0, special_tokens=True).set_index(
        ["method", "layer"]
    )
    assert list(frame.index) == [("attention_last", 1), ("attention_last", 2), ("attention_rollout", 1),
                                 ("attention_rollout", 2)]  # fmt: skip
    for name in ("attention_last", "attention_rollout"):
        assert frame["value"][name, 2] == pytest.approx(
            results[results["method"] == name]["rationale_auc"].mean(), abs=1e-6
        )
