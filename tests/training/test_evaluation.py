"""The figures of predictions, against other implementations, enumeration and numbers worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy.stats import pearsonr

import families
from expound.models import ExplainedModel
from expound.training.loop.evaluation import find_answer_characters, predict_answer_positions, score
from runs import answers, bert, sentences, trainer


def test_accuracy_and_macro_f1_by_hand():
    probabilities = np.eye(3)[[0, 0, 1, 1]]
    found = score("classification", probabilities, Dataset.from_dict({"label": [0, 1, 1, 1]}))
    assert found == pytest.approx({"accuracy": 3 / 4, "f1_macro": (2 / 3 + 4 / 5) / 2})


def test_pearson_is_scipys_and_none_for_constants():
    generator = np.random.default_rng(0)
    labels, values = generator.normal(size=20), generator.normal(size=20)
    found = score("regression", values[:, None], Dataset.from_dict({"label": labels}))
    assert found["pearson"] == pytest.approx(pearsonr(labels, values).statistic)
    assert found["rmse"] == pytest.approx(float(np.sqrt(np.mean((labels - values) ** 2))))
    assert np.isnan(score("regression", np.ones((20, 1)), Dataset.from_dict({"label": labels}))["pearson"])


def test_answers_by_hand():
    cases = [
        ("the red door", ["a red door!"], 1, 1),
        ("red door", ["the door"], 0, 2 / 3),
        ("red red door", ["red door red", "blue"], 0, 1),
        ("door", ["blue", "old door"], 0, 2 / 3),
        ("", [], 1, 1),
        ("", ["door"], 0, 0),
        ("door", [], 0, 0),
    ]
    for given, gold, exact, f1 in cases:
        texts = [given, *gold]
        context = " | ".join(texts)
        edges = np.cumsum([0, *(len(text) + 3 for text in texts)]).tolist()
        spans = [[start, end - 3] for start, end in pairwise(edges)]
        data = Dataset.from_dict({"text_pair": [context], "answer": [spans[1:]]})
        assert score("span", np.array([spans[0]]), data) == pytest.approx({"exact_match": exact, "f1": f1})


def test_the_answer_is_the_best_span_inside_the_context_or_none():
    model = ExplainedModel(families.tiny("bert", "QuestionAnswering", num_labels=2), families.tokenizer("bert"))
    data = answers(12)
    batch = model.encode(list(data))
    torch.manual_seed(0)
    logits = torch.randn(12, 2, batch.length)
    logits[::3, :, 0] += 4
    for row, (start, end) in enumerate(predict_answer_positions(model, batch, logits).tolist()):
        inside = [i for i, span in enumerate(batch.alignments[row].spans) if span is not None and span[0] == 1]
        spans = [(s, e) for s in inside for e in inside if s <= e < s + 30]
        best = max([*spans, (0, 0)], key=lambda span: float(logits[row, 0, span[0]] + logits[row, 1, span[1]]))
        assert (start, end) == best
    assert {start == 0 for start in predict_answer_positions(model, batch, logits)[:, 0].tolist()} == {True, False}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_labeled_positions_are_the_answers_characters(family):
    """Also under left padding."""
    model = ExplainedModel(families.tiny(family, "QuestionAnswering", num_labels=2), families.processor(family))
    data = answers(12)
    rows = [*data, {"text": "what is it", "text_pair": "a long story " * 6 + "of red", "answer": [[81, 84]]}]
    batch = model.encode(rows)
    expected = [row["answer"][0] if row["answer"] else [0, 0] for row in rows]
    texts = [row["text_pair"][a:b].strip() for row, (a, b) in zip(rows, expected, strict=True)]
    found = find_answer_characters(batch, batch.labels).tolist()
    assert [row["text_pair"][a:b].strip() for row, (a, b) in zip(rows, found, strict=True)] == texts


def test_predictions_are_the_models_probabilities_in_the_datasets_order(tmp_path):
    model, data = bert(), sentences(21)
    loop = trainer(tmp_path, model, data, per_device_eval_batch_size=4)
    output = loop.predict(data)
    one_by_one = torch.cat([model.probabilities(model.encode([row])) for row in data])
    np.testing.assert_allclose(output.predictions, one_by_one.numpy(), atol=1e-6)
    gold = torch.tensor(data["label"][:])
    right = one_by_one.gather(1, gold[:, None]).log().neg()
    assert output.metrics["test_loss"] == pytest.approx(float(right.mean()), abs=1e-6)
    assert output.metrics["test_cross_entropy"] == pytest.approx(float(right.mean()), abs=1e-6)
    assert output.metrics["test_accuracy"] == pytest.approx(float((one_by_one.argmax(1) == gold).float().mean()))
