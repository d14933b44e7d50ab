from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, recall_score, roc_auc_score

import families
from expound.data.alignment import pool
from expound.errors import ExpoundError
from expound.metrics import metric
from expound.metrics.plausibility import RankedUnits
from expound.metrics.ranking import ranks
from expound.models import Batch
from judged import model_of

IDS = ("rationale_auc", "auprc", "average_precision", "recall_at_k", "token_f1")


def mark_first(scores, k):
    """A 0/1 list with 1 for the k largest scores, in a stable order."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return [int(place in order[:k]) for place in range(len(scores))]


def area(gold, scores):
    """ERASER's AUPRC."""
    precision, recall, _ = precision_recall_curve(gold, scores)
    return sklearn.metrics.auc(recall, precision)


REFERENCES = {
    "rationale_auc": roc_auc_score,
    "auprc": area,
    "average_precision": average_precision_score,
    "recall_at_k": lambda gold, scores: recall_score(gold, mark_first(scores, sum(gold))),
    "token_f1": lambda gold, scores: f1_score(gold, mark_first(scores, sum(gold))),
}


def value_of(name, scores, gold, candidates, **params):
    """The metric of rows given as tensors, in float64."""
    scores = scores.double().masked_fill(~candidates, -torch.inf)
    order = ranks(scores, candidates).argsort(1)
    ranked = RankedUnits(*(each.gather(1, order) for each in (scores, gold, candidates)), order)
    return metric(name, **params).value(ranked)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 12), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("name", IDS)
def test_agrees_with_scikit_learn_over_ties_and_padding(name, length, rows, levels, seed):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(-levels, levels + 1, (rows, length)) / 7)
    gold = torch.from_numpy(rng.random((rows, length)) < 0.4)
    candidates = torch.from_numpy(rng.random((rows, length)) < 0.8)
    gold &= candidates
    got = value_of(name, scores, gold, candidates)
    for row in range(rows):
        marks, values = gold[row][candidates[row]].int().tolist(), scores[row][candidates[row]].tolist()
        if 0 < sum(marks) < len(marks):
            assert float(got[row]) == pytest.approx(REFERENCES[name](marks, values), abs=1e-9)


@given(st.integers(2, 30), st.sampled_from([0.1, 0.25, 0.5, 1, 3, 25]), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_f1_of_a_fixed_number_or_fraction(length, k, seed):
    rng = np.random.default_rng(seed)
    scores, gold = torch.from_numpy(rng.integers(0, 4, (1, length))), torch.from_numpy(rng.random((1, length)) < 0.4)
    gold[0, 0], gold[0, 1] = True, False
    chosen = mark_first(scores[0].tolist(), max(1, int(np.ceil(length * k - 1e-9))) if k < 1 else k)
    got = value_of("token_f1", scores, gold, torch.ones_like(gold), **{"fraction" if k < 1 else "k": k})
    assert float(got) == pytest.approx(f1_score(gold[0].int().tolist(), chosen), abs=1e-9)


def spans_of(flags):
    """The runs of true values as sets of places."""
    spans, before = [], False
    for place, flag in enumerate(flags):
        if flag and not before:
            spans.append(set())
        if flag:
            spans[-1].add(place)
        before = flag
    return spans


@given(st.integers(2, 30), st.sampled_from([None, 0.25, 3]), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_iou_f1_counts_spans_as_sets(length, k, seed):
    rng = np.random.default_rng(seed)
    scores, gold = torch.from_numpy(rng.integers(0, 9, (1, length))), torch.from_numpy(rng.random((1, length)) < 0.4)
    gold[0, 0], gold[0, 1] = True, False
    size = int(gold.sum()) if k is None else max(1, int(np.ceil(length * k - 1e-9))) if k < 1 else min(k, length)
    chosen = spans_of(mark_first(scores[0].tolist(), size))
    truths = spans_of(gold[0].tolist())
    hits = sum(max(len(span & truth) / len(span | truth) for truth in truths) >= 0.5 for span in chosen)
    order = ranks(scores.double(), torch.ones_like(gold)).argsort(1)
    ranked = RankedUnits(*(each.gather(1, order) for each in (scores.double(), gold, torch.ones_like(gold))), order)
    found = metric("iou_f1", **{"k": k} if k is None or k >= 1 else {"fraction": k}).values(ranked)
    assert float(found["iou_f1"]) == pytest.approx(2 * hits / (len(chosen) + len(truths)))
    assert float(found["iou_precision"]) == pytest.approx(hits / len(chosen))
    assert float(found["iou_recall"]) == pytest.approx(hits / len(truths))


def test_by_hand():
    scores = torch.tensor([[3.0, 2.0, 2.0, 1.0]])
    gold = torch.tensor([[False, True, False, True]])
    # Pairs (marked, unmarked): 2 < 3, 2 = 2, 1 < 3, 1 < 2.  Precision at 2: 1/3, at 1: 2/4.
    expected = {"rationale_auc": 0.125, "average_precision": (1 / 3 + 1 / 2) / 2, "recall_at_k": 0.5, "token_f1": 0.5}
    expected["needle_rank"] = 2.5  # second and third are equal
    for name, value in expected.items():
        assert float(value_of(name, scores, gold, torch.ones_like(gold))) == pytest.approx(value)


@pytest.fixture(scope="module")
def rationale_rows():
    """Rows with rationales of one and two words, of no word, of every word, and a row that was not annotated."""
    rows = [{"text": text, "rationale": None} for text in families.SENTENCES[:5]]
    rows[0]["rationale"] = [[2, 8], [23, 27]]
    rows[1]["rationale"] = [[12, 16]]
    rows[2]["rationale"] = []
    rows[3]["rationale"] = [[0, len(families.SENTENCES[3])]]
    return rows


def test_words_are_the_sums_of_their_pieces(rationale_rows):
    for name in IDS:
        for absolute in [False, True]:
            for family in ["bert", "roberta", "gpt2"]:
                model = model_of(family)
                batch = model.encode(rationale_rows)
                assert (
                    batch.word_of[1].unique(return_counts=True)[1][1:] > 1
                ).any()  # premise: some word has several tokens
                attribution = (
                    torch.randn(batch.content.shape, generator=torch.Generator().manual_seed(3)) * batch.content
                )
                got = metric(name, absolute=absolute).evaluate(model, batch, attribution)[name]
                assert got.isnan().tolist() == [False, False, True, True, True]
                for row in range(2):
                    words, count = batch.word_of[row].tolist(), len(batch.alignments[row].words)
                    scores = pool(attribution[row].tolist(), words, count)
                    gold = pool(batch.rationale_mask[row].int().tolist(), words, count, "max").astype(int)
                    scores = np.abs(scores) if absolute else scores
                    assert float(got[row]) == pytest.approx(REFERENCES[name](gold.tolist(), scores.tolist()), abs=1e-6)


def test_tokens_with_and_without_special_ones(rationale_rows):
    for name in IDS:
        for specials in [False, True]:
            model = model_of("bert")
            batch = model.encode(rationale_rows)
            attribution = torch.randn(batch.content.shape, generator=torch.Generator().manual_seed(3)) * batch.content
            got = metric(name, unit="token", special_tokens=specials, absolute=True).evaluate(
                model, batch, attribution
            )[name]
            assert got.isnan().tolist() == [False, False, True, not specials, True]
            for row in range(2):
                candidates = (batch.attended if specials else batch.content)[row]
                gold, scores = batch.rationale_mask[row][candidates].int(), attribution[row][candidates].abs()
                assert float(got[row]) == pytest.approx(REFERENCES[name](gold.tolist(), scores.tolist()), abs=1e-6)


def test_planted_evidence_is_found(rationale_rows):
    for name in IDS:
        model = model_of("bert")
        batch = model.encode(rationale_rows)
        perfect = metric(name).evaluate(model, batch, batch.rationale_mask.float())[name]
        assert perfect[:2].tolist() == [1, 1]
        wrong = metric(name).evaluate(model, batch, (batch.content & ~batch.rationale_mask).float())[name]
        assert (wrong[:2] < perfect[:2]).all()
        if name == "rationale_auc":
            assert wrong[:2].tolist() == [0, 0]
            assert metric(name).evaluate(model, batch, torch.zeros_like(batch.content.float()))[name][:2].tolist() == [
                0.5,
                0.5,
            ]


def test_without_rationales_everything_is_undefined():
    for family in ["bert", "gpt2", "vit"]:
        for name in IDS:
            model = model_of(family)
            batch = model.encode(families.examples(family))
            assert metric(name).evaluate(model, batch, torch.zeros_like(batch.content.float()))[name].isnan().all()


def test_a_batch_of_ids_without_words_or_padding():
    model = model_of("bert")
    plain = Batch.from_ids(torch.tensor([[2, 40, 3]]), content=torch.tensor([[False, True, False]]))
    batch = Batch(plain.inputs, plain.attended, plain.content, plain.word_of, rationale_mask=plain.content)
    for name in IDS:
        assert metric(name).evaluate(model, batch, plain.content.float())[name].isnan().all()


def test_special_tokens_belong_to_no_word():
    with pytest.raises(ExpoundError, match="unit='token'"):
        metric("rationale_auc", special_tokens=True)
