"""Functions from texts to probabilities: explained by their answers to the texts without some words."""

from __future__ import annotations

import functools
import re
import sys
from itertools import permutations, product
from math import factorial

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from starlette.testclient import TestClient

import expound
from expound import ExpoundError
from expound.cli import main
from expound.evaluation.compare.choice import list_native_methods
from expound.metrics import list_metrics
from expound.models.perturbation import run
from expound.serve import Site, create_app
from expound.serve.explore.service import Explorer
from sites import HERE, TOKEN

ROWS = [
    {"text": "a moving film about a small town", "label": "good", "rationale": [[2, 8]]},
    {"text": "great acting and a moving story", "label": "good", "rationale": [[0, 5]]},
    {"text": "dull plot and bad jokes", "label": "bad", "rationale": [[0, 4]]},
    {"text": "the story is bad and dull", "label": "bad", "rationale": [[13, 16]]},
]
TEXTS = [row["text"] for row in ROWS]
MIXED = "A moving film, but the plot is dull"
# Each text with its words as they are removed: a word goes with the white space before it.
SPACED = {
    " A moving\n\n film,\tbut  dull \n": [" A", " moving", "\n\n film,", "\tbut", "  dull \n"],
    "这部电影dull 好": ["这", "部", "电", "影", "dull", " 好"],
    "one": ["one"],
}


@functools.cache
def pipeline():
    return make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=100)).fit(
        TEXTS, [row["label"] for row in ROWS]
    )


class Counting:
    """A function of the characters of its texts, which keeps what it was asked."""

    def __init__(self):
        self.asked, self.calls, self.failing = [], 0, ()

    def __call__(self, texts):
        self.calls += 1
        if self.calls in self.failing:
            raise ConnectionError("no route\nto host")
        self.asked += texts
        share = [(sum(map(ord, text)) % 97 + 1) / 99 for text in texts]
        return [[value, 1 - value] for value in share]


def probability(text, function=None):
    return float(np.asarray((function or pipeline().predict_proba)([text]))[0, 0])


def join(words, kept):
    """The text of the kept words, written out by hand."""
    text = "".join(word for word, is_kept in zip(words, kept, strict=True) if is_kept)
    return text if kept[0] else text.lstrip()


def word_scores(model, text, spec):
    batch = model.encode([text])
    return expound.explainer(spec).attribute(model, batch, torch.tensor([0]))[0].numpy()


def test_scores_are_those_of_words_removed_by_hand():
    for text, words in SPACED.items():
        counting = Counting()
        model = expound.load(counting, labels=["one", "other"])
        whole = probability(text, Counting())
        drops = []
        for number in range(len(words)):
            kept = [place != number for place in range(len(words))]
            drops.append(whole - probability(join(words, kept), Counting()))
        np.testing.assert_allclose(word_scores(model, text, "occlusion?perturbation=remove"), drops, atol=1e-12)
        sets = list(product([False, True], repeat=len(words)))
        values = {kept: probability(join(words, kept), Counting()) for kept in sets}
        exact = np.zeros(len(words))
        for order in permutations(range(len(words))):
            kept = [False] * len(words)
            for word in order:
                before = values[tuple(kept)]
                kept[word] = True
                exact[word] += (values[tuple(kept)] - before) / factorial(len(words))
        for method in ("kernel_shap", "shapley_sampling"):
            np.testing.assert_allclose(word_scores(model, text, method), exact, atol=1e-9)
        # Every text was asked once, and they are the texts that remain, and no others.
        assert sorted(counting.asked) == sorted({join(words, kept) for kept in sets})


def test_explanations_are_those_of_lime_and_shap():
    """Compare with the packages: pip install lime shap."""
    lime_text, shap = pytest.importorskip("lime.lime_text"), pytest.importorskip("shap")
    model, words = expound.load(pipeline().predict_proba), re.findall(r"\s*\S+", MIXED)

    def answer(sets):
        return pipeline().predict_proba([join(words, kept) for kept in np.asarray(sets, bool)])

    explained = shap.KernelExplainer(answer, np.zeros((1, len(words)))).shap_values(
        np.ones(len(words)), nsamples=1 << len(words), l1_reg=False, silent=True
    )
    assert np.abs(explained).max() > 0.1
    for method in ("kernel_shap", "shapley_sampling"):
        np.testing.assert_allclose(word_scores(model, MIXED, f"{method}?n_samples=512"), explained[:, 0], atol=1e-6)
    indexed = lime_text.IndexedString(MIXED, split_expression=r"[\s,]+")
    sets = np.array(sorted(product([0, 1], repeat=len(words)), reverse=True))
    texts = [indexed.inverse_removing(np.flatnonzero(kept == 0)) for kept in sets]
    distances = 100 * (1 - np.sqrt(sets.mean(1)))
    answers = pipeline().predict_proba(texts)
    base = lime_text.LimeTextExplainer().base
    for count in range(1, len(words) + 1):
        _, found, *_ = base.explain_instance_with_data(sets, answers, distances, 0, count, feature_selection="auto")
        expected = [dict(found).get(word, 0) for word in range(len(words))]
        scores = word_scores(model, MIXED, f"lime?n_samples={len(sets)}&num_features={count}")
        np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_a_text_is_asked_once_and_after_an_error_only_what_is_missing(monkeypatch):
    monkeypatch.setattr(run, "get_token_budget", lambda device: 40)
    text = "a b c d e f g h i j"
    whole, counting = Counting(), Counting()
    expected = word_scores(expound.load(whole, labels=["x", "y"]), text, "kernel_shap?n_samples=200")
    assert len(whole.asked) == len(set(whole.asked))
    assert whole.calls > 20
    model, counting.failing = expound.load(counting, labels=["x", "y"]), (5, 11)
    for _ in counting.failing:
        with pytest.raises(ExpoundError, match=r"Counting fails on \d+ texts, .*: ConnectionError: no route to host$"):
            word_scores(model, text, "kernel_shap?n_samples=200")
    assert (word_scores(model, text, "kernel_shap?n_samples=200") == expected).all()
    assert sorted(counting.asked) == sorted(whole.asked)
    before = counting.calls
    word_scores(model, text, "kernel_shap?n_samples=200")
    assert counting.calls == before


def test_answers_that_are_no_probabilities_are_refused_in_a_sentence(tmp_path):
    cases = {
        r"shape \[2, 3\], expected .* \[2, 2\]": lambda texts: [[0.2, 0.3, 0.5]] * len(texts),
        r"shape \[2\],": lambda texts: [0.5] * len(texts),
        r"shape \[1, 2\],": lambda texts: [[0.5, 0.5]],
        r"returns 2, -1 for 'a b', expected .* sum to 1": lambda texts: torch.tensor([[2.0, -1.0]] * len(texts)),
        r"returns nan, 1": lambda texts: [[float("nan"), 1.0]] * len(texts),
        r"returns 0\.4, 0\.4": lambda texts: [[0.4, 0.4]] * len(texts),
        "returns no numbers": lambda texts: ["good"] * len(texts),
        r"returns no numbers.*inhomogeneous": lambda texts: [[0.5, 0.5], [1.0]],
    }
    for message, function in cases.items():
        model = expound.load(function, labels=["good", "bad"])
        with pytest.raises(ExpoundError, match=message) as caught:
            model.probabilities(model.encode(["a b", "c d"]))
        assert "\n" not in str(caught.value)
    for labels, message in {(): "two different", ("a", "a"): "two different", None: r"labels=\[…\]"}.items():
        with pytest.raises(ExpoundError, match=message):
            expound.load(Counting(), labels=labels)
    with pytest.raises(ExpoundError, match="labels= only"):
        expound.load(Counting(), labels=["a", "b"], device="cpu")
    with pytest.raises(ExpoundError, match="predict_proba of a scikit-learn pipeline"):
        expound.load(pipeline())
    model = expound.load(pipeline().predict_proba)
    assert model.labels == ("bad", "good")
    with pytest.raises(ExpoundError, match="one text"):
        expound.attribute(model, ("a", "b"))
    with pytest.raises(ExpoundError, match="no logits"):
        expound.attribute(model, "a b", output="logit")
    with pytest.raises(ExpoundError, match="perturbation='remove'"):
        expound.attribute(model, "a b", perturbation="mask")
    with pytest.raises(ExpoundError, match="answers only cannot be trained"):
        expound.train(model, ROWS, "baseline", dev=ROWS, output_dir=tmp_path)


def test_methods_and_metrics_that_need_only_answers_work_and_others_say_what_they_need():
    model = expound.load(pipeline().predict_proba)
    batch, possible = model.encode(ROWS), list_native_methods(black_box=True)
    assert {"occlusion", "lime", "kernel_shap", "context_cite", "solvex", "spex", "random"} <= set(possible)
    for name in list_native_methods():
        if name in possible:
            found = expound.attribute(model, ROWS, name)
            assert np.abs(found[0].scores).max() > 1e-3
        else:
            with pytest.raises(ExpoundError, match=f"{name} is refused: a function gives answers only"):
                expound.attribute(model, ROWS, name)
    scores, refused = expound.explainer("kernel_shap").attribute(model, batch), set()
    for name in list_metrics()["name"]:
        if name in ("seconds", "peak_memory", "f_fidelity"):
            continue
        judge = expound.metric(name)
        judge = expound.metric(name, **({"perturbation": "remove"} if "perturbation" in judge.params else {}))
        try:
            assert torch.isfinite(judge.evaluate(model, batch, scores)[name]).all()
        except ExpoundError as error:
            assert "a function gives answers only" in str(error)  # noqa: PT017
            refused.add(name)
    assert refused == {"soft_comprehensiveness", "soft_sufficiency", "consistency"}


def test_a_comparison_is_that_of_words_removed_by_hand_and_resumes_for_the_same_answers_only(tmp_path):
    model = expound.load(pipeline().predict_proba)
    found = expound.compare(model, ROWS, output_dir=tmp_path / "c")
    assert set(found.results["method"]) == {"occlusion", "lime", "kernel_shap", "random"}
    assert "log_odds" in found.results
    (one,) = [item for item in found.attributions if item.index == 2 and item.method == "occlusion"]
    words = TEXTS[2].split()
    drops = [probability(TEXTS[2]) - probability(" ".join(words[:n] + words[n + 1 :])) for n in range(len(words))]
    np.testing.assert_allclose(one.scores[0], drops, atol=1e-6)
    assert max(drops) > 0.03
    expound.compare(model, ROWS, output_dir=tmp_path / "c")
    other = make_pipeline(FunctionTransformer(lambda texts: [text[::-1] for text in texts]), pipeline())
    with pytest.raises(ExpoundError, match="settings"):
        expound.compare(expound.load(other.predict_proba), ROWS, output_dir=tmp_path / "c")


def test_the_commands_import_a_function_and_open_no_pickle(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_classifier.py").write_text(
        "def predict(texts):\n    return [[0.9, 0.1] if 'bad' in text else [0.2, 0.8] for text in texts]\n"
    )
    (tmp_path / "rows.csv").write_text("text,label\nnot bad at all,good\nbad jokes,bad\n")
    (tmp_path / "model.pkl").write_bytes(b"cos\nsystem\n.")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    own = ["--model", "own_classifier:predict", "--labels", "bad,good"]
    assert main(["explain", "bad jokes", *own, "--json"]) == 0
    assert '"occlusion"' in capsys.readouterr().out
    assert main(["compare", *own, "--data", "csv:rows.csv", "--output-dir", "out", "--quiet"]) == 0
    assert (tmp_path / "out" / "report.html").exists()
    assert sys.path == before
    capsys.readouterr()
    for command, message in {
        ("explain", "a", "--model", "own_classifier:predict"): "labels=[…]",
        ("explain", "a", "--model", "own_classifier:other"): "has no attribute 'other'",
        ("explain", "a", "--model", "no_such_module:f"): "No module named 'no_such_module'",
        ("explain", "a", "--model", "model.pkl"): "MODULE:FUNCTION",
        ("explain", "--data", "csv:rows.csv", *own, "--output-dir", "corpus"): "expound.attribute",
    }.items():
        assert main(list(command)) == 2
        assert message in capsys.readouterr().err


def test_the_page_explains_a_function():
    explorer = Explorer({"own": expound.load(pipeline().predict_proba)})
    client = TestClient(create_app(Site(TOKEN, explorer=explorer)), base_url=HERE, headers={"accept": "text/html"})
    assert client.get("/sign-in", params={"token": TOKEN}).status_code == 200
    page = client.get("/explore", params={"text": MIXED, "whole": 1, "method": ["occlusion", "kernel_shap"]}).text
    assert 'data-method="occlusion"' in page
    assert page.count("data-unit=") == 2 * len(MIXED.split())
    assert 'value="saliency"' not in page
