from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

import expound
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.metrics.simulatability import simulatability_gain
from expound.recipes import extract_rationales
from expound.testing.models import random_model
from expound_papers.protocols.performance import evaluate_performance
from expound_papers.protocols.randomization import randomize_cascade
from expound_papers.protocols.registry import PROTOCOLS, check_protocol, run_protocol


@pytest.fixture(scope="module")
def data():
    return expound.load_data("generated?size=48", "dev", limit=12)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of different weights, with the corpus's labels."""
    found = []
    for seed in range(2):
        model, folder = random_model(seed), tmp_path_factory.mktemp("model")
        model.model.config.id2label = {0: "negative", 1: "positive"}
        model.model.config.label2id = {"negative": 0, "positive": 1}
        with torch.no_grad():
            model.model.classifier.bias -= model.model.classifier.bias.mean() + torch.tensor([0.02 * seed, 0.0])
        model.model.save_pretrained(folder)
        model.processing_class.save_pretrained(folder)
        found.append(folder)
    return found


def test_removal_is_judged_on_texts_without_the_chosen_words(folders, data):
    model, support = (expound.load(folder, device="cpu") for folder in folders)
    options = {"explained_model": str(folders[1]), "explainer": "occlusion", "fraction": 0.3}
    check_protocol("roar", options)
    found = run_protocol("roar", model, data, options, seed=0)
    expected, _ = evaluate_performance(model, extract_rationales(support, data, "occlusion", 0.3, rest=True))
    assert found == {f"roar_{name}": value for name, value in expected.items()}


def test_sanity_is_the_cascade_at_three_stages_and_the_model_of_shuffled_labels(folders, data):
    model = expound.load(folders[0], device="cpu")
    options = {"explainer": "input_x_gradient", "random_labels": str(folders[1])}
    check_protocol("sanity", options)
    found = run_protocol("sanity", model, data, options, seed=7)
    means = randomize_cascade(model, list(data), "input_x_gradient", seed=7).means
    assert [found["sanity_head"], found["sanity_all"]] == pytest.approx([means[1], means[-1]])
    assert -1 <= found["sanity_labels"] < 0.9
    same = run_protocol("sanity", model, data, options | {"random_labels": str(folders[0])}, seed=7)
    assert same["sanity_labels"] == pytest.approx(1)
    assert not any(PROTOCOLS["sanity"].figures.values())  # the less alike, the better


def test_a_student_gains_on_one_that_had_no_explanations(folders, data):
    one, other = (expound.load(folder, device="cpu") for folder in folders)
    said = [one.predict(one.encode(list(data))).numpy(), other.predict(other.encode(list(data))).numpy()]
    alike = float(np.mean(said[0] == said[1]))
    options = {"teacher": str(folders[0]), "without": str(folders[1])}
    found = run_protocol("simulatability", one, data, options, seed=0)
    assert found["simulatability"] == 1
    assert found["simulatability_gain"] == pytest.approx(simulatability_gain(1.0, alike), nan_ok=True)
    assert set(run_protocol("simulatability", one, data, {"teacher": str(folders[0])}, seed=0)) == {"simulatability"}


def test_the_best_head_is_the_best_of_all_explainers_with_one_head(folders, data):
    model, metric = expound.load(folders[0], device="cpu"), "rationale_auc?absolute=false"
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    explainers = {}
    for layer in range(layers):
        for head in [None, *range(heads)]:
            explainer = ParameterizedAttention.for_model(model, normalizer="none")
            explainer.coefficients.data.zero_()
            explainer.coefficients.data[layer, slice(None) if head is None else head] = 1 / (
                heads if head is None else 1
            )
            explainers[f"{layer}/{head}"] = explainer
    said = expound.compare(model, data, explainers, [metric]).results.groupby("method")["rationale_auc"].mean()
    check_protocol("best_attention", {"metric": metric})
    found = run_protocol("best_attention", model, data, {"metric": metric}, seed=0)
    whole = said.index.str.endswith("None")
    assert found == pytest.approx({"best_layer": said[whole].max(), "best_head": said[~whole].max()}, abs=1e-6)
    assert said[~whole].min() < said[~whole].max()


def test_micro_f1_is_sklearns_over_the_tokens_of_all_texts(folders, data):
    model, method = expound.load(folders[0], device="cpu"), "input_x_gradient"
    gold, chosen = [], []
    for row, item in zip(data, expound.attribute(model, data, method=method), strict=True):
        content = ~np.array(item.special)
        first = np.argsort(-np.abs(item.content_scores), kind="stable")[:3]
        chosen.append(np.isin(np.arange(content.sum()), first))
        gold.append(model.encode([row]).rationale_mask[0].numpy()[content])
    options = {"k": 3}
    check_protocol("micro_f1", options)
    found = run_protocol("micro_f1", model, data, options, seed=0, explainers=[method, "random"])
    assert list(found["method"]) == [method, "random"]
    assert found["micro_f1"][0] == pytest.approx(f1_score(np.concatenate(gold), np.concatenate(chosen)))
