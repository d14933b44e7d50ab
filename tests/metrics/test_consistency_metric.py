"""Consistency against scipy pair by pair, and relative gains by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import families
from expound import ExpoundError
from expound.metrics import average_relative_gain, metric
from expound.models import Capture
from expound.models.rank_correlation import compute_spearman
from judged import PAIRS, attribution_for, model_of


def mean_states(model, batch):
    with torch.no_grad():
        layers = model(batch, capture=Capture(hidden_states=True)).hidden_states
    return torch.stack([layer.double() for layer in layers]).mean(0)


def correlations_by_pairs(model, batch, scores):
    """Each pair's ρ by scipy, over positions with content in both, counted from the first content position."""
    states, found = mean_states(model, batch), {}
    for i, j in itertools.combinations(range(len(batch)), 2):
        rows = []
        for row in (i, j):
            first = int(batch.content[row].nonzero()[0])
            rows.append({int(p) - first: int(p) for p in batch.content[row].nonzero()})
        shared = sorted(rows[0].keys() & rows[1].keys())
        inside = [float((states[i, rows[0][p]] - states[j, rows[1][p]]).norm()) for p in shared]
        outside = [float((scores[i, rows[0][p]] - scores[j, rows[1][p]]).abs()) for p in shared]
        if len(shared) > 1 and len(set(outside)) > 1:
            found[i, j] = spearmanr(inside, outside).statistic
    return found


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("pairs", [False, True])
def test_the_mean_over_pairs_of_spearmans_rho_over_tokens(family, pairs):
    model = model_of(family)
    batch = model.encode([*PAIRS, ("a", "river")] if pairs else families.examples(family))
    scores = attribution_for(batch)
    values = metric("consistency").evaluate(model, batch, scores)["consistency"]
    rho = correlations_by_pairs(model, batch, scores.double())
    assert len(rho) >= 3
    for row in range(len(batch)):
        own = [value for pair, value in rho.items() if row in pair]
        assert values[row].item() == pytest.approx(np.mean(own), abs=1e-6) if own else values[row].isnan()


def test_consistency_across_pairs_is_one_rho_for_all_pairs():
    model = model_of("bert")
    batch = model.encode(families.examples("bert"))
    scores = attribution_for(batch)
    values = metric("consistency?across=pairs").evaluate(model, batch, scores)["consistency"]
    states, inside, outside = mean_states(model, batch), [], []
    for i, j in itertools.combinations(range(len(batch)), 2):
        means = [states[row][batch.content[row]].mean(0) for row in (i, j)]
        inside.append(float((means[0] - means[1]).norm()))
        outside.append(float((scores[i] - scores[j]).norm()))
    expected = spearmanr(inside, outside).statistic
    torch.testing.assert_close(values, torch.full((len(batch),), expected, dtype=torch.float32))


def test_ranks_with_ties_and_what_does_not_count():
    one = torch.tensor([[1.0, 2.0, 2.0, 9.0, 5.0], [1.0, 1.0, 1.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0, 0.0]])
    other = torch.tensor([[0.1, 0.1, 0.4, -8.0, 0.3], [1.0, 2.0, 3.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    counted = torch.tensor([[True, True, True, False, True], [True, True, True, False, False], [True] + [False] * 4])
    found = compute_spearman(one.double(), other.double(), counted)
    assert found[0].item() == pytest.approx(spearmanr([1, 2, 2, 5], [0.1, 0.1, 0.4, 0.3]).statistic)
    assert found[1:].isnan().all()


def test_consistency_of_one_example_or_constant_scores_is_nan():
    model = model_of("bert")
    judge = metric("consistency")
    batch = model.encode(["a film", "a dull river and its town", "great acting cannot save it"])
    assert judge.evaluate(model, batch.select([0]), attribution_for(batch)[:1])["consistency"].isnan().all()
    assert judge.evaluate(model, batch, batch.content.double())["consistency"].isnan().all()
    with pytest.raises(ExpoundError, match="pairs, tokens"):
        metric("consistency?across=words")


def test_keep_question_erases_tokens_of_the_context_only():
    model = model_of("bert", "QuestionAnswering")
    batch = model.encode(PAIRS)
    question = batch.content & ~batch.erasable
    scores = torch.where(question, 5.0, attribution_for(batch)) * batch.content
    for name in ("aopc_comprehensiveness", "sufficiency"):
        kept, whole = metric(name, perturbation="mask", keep_question=True), metric(name, perturbation="mask")
        elsewhere = scores.masked_fill(question, 0.0)
        assert torch.equal(kept.evaluate(model, batch, scores)[name], kept.evaluate(model, batch, elsewhere)[name])
        assert not torch.equal(whole.evaluate(model, batch, scores)[name], kept.evaluate(model, batch, scores)[name])


def test_relative_gain_by_hand():
    cases = [
        ([0.9], [0.8], True, 12.5),
        ([0.9, 0.4], [0.8, 0.5], True, -3.75),
        ([0.2], [0.1], False, -100.0),
        ([-0.05], [-0.1], False, -50.0),
        ([-0.2], [-0.1], False, 100.0),
    ]
    for scores, usual, higher, expected in cases:
        assert average_relative_gain(scores, usual, higher) == pytest.approx(expected)


def test_relative_gain_over_a_zero_baseline_is_nan():
    assert np.isnan(average_relative_gain([0.5, 0.1], [0.5, 0.0]))
    with pytest.raises(ExpoundError, match="got 2 and 1"):
        average_relative_gain([0.5, 0.1], [0.5])
