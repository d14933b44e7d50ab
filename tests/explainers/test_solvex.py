from __future__ import annotations

from itertools import permutations
from typing import get_args

import numpy as np
import pytest
import torch

import expound
from expound.errors import ExpoundError
from expound.explainers.perturbation import solvex
from expound.explainers.perturbation.solvex import SearchCriterion, _shift_ranks
from expound.explainers.units import number_units
from families import SENTENCES, processor, tiny


@pytest.fixture(scope="module")
def model():
    hf = tiny("bert")
    with torch.no_grad():
        hf.classifier.weight.mul_(8)
    return expound.load(hf, processor("bert"))


def probabilities(model, batch, perturbation):
    """The number of units, and p of each subset of kept units, computed one by one."""
    unit = number_units(batch, "word")[0]
    count = int(unit.max()) + 1
    found = {}
    for number in range(2**count):
        kept = frozenset(i for i in range(count) if number >> i & 1)
        keep = torch.tensor([int(u) in kept for u in unit])[None, None]
        found[kept] = float(model.predict_perturbed(batch, keep, perturbation)[0, 0, 1])
    return count, found


def worth(order, count, p, objective):
    """The sum of the objective over the beginnings of an order."""
    everyone, total = frozenset(range(count)), 0.0
    for t in range(1, count):
        taken = frozenset(order[:t])
        total += {
            "comprehensiveness": p[everyone] - p[everyone - taken],
            "sufficiency": p[taken] - p[everyone],
            "difference": p[taken] - p[everyone - taken],
            "log_odds": np.log(p[everyone]) - np.log(p[everyone - taken]),
        }[objective]
    return total


def scores_of(model, text, **params):
    batch = model.encode([text])
    unit = number_units(batch, "word")[0]
    scores = expound.explainer("solvex", **params).attribute(model, batch, torch.tensor([1]))[0]
    return np.array([float(scores[unit == i].sum()) for i in range(int(unit.max()) + 1)])


@pytest.mark.parametrize("objective", get_args(SearchCriterion))
@pytest.mark.parametrize("text", ["a moving film about rain", "the plot is dull , but"])
def test_an_unlimited_beam_finds_the_best_of_all_orders(model, objective, text):
    perturbation = "mask" if objective == "log_odds" else "remove"
    count, p = probabilities(model, model.encode([text]), perturbation)
    worths = {order: worth(order, count, p, objective) for order in permutations(range(count))}
    best = max(worths.values())
    found = scores_of(model, text, criterion=objective, beam=10_000)
    order = tuple(np.argsort(-found))
    assert worths[order] == pytest.approx(best, abs=1e-5)
    assert best > np.median(list(worths.values())) + 1e-4
    drops = np.array([p[frozenset(range(count))] - p[frozenset(range(count)) - {i}] for i in range(count)])
    agreement = [(np.sign(count - 1 - np.argsort(order) - o + 0.5) == np.sign(drops)).sum() for o in range(count + 1)]
    assert (np.sign(found) == np.sign(drops)).sum() == max(agreement)


def test_a_wider_beam_is_no_worse_and_a_beam_of_one_is_greedy(model):
    text = "the plot is dull , but nobody"
    count, p = probabilities(model, model.encode([text]), "remove")
    worths = []
    for beam in (1, 4, 64):
        order = tuple(np.argsort(-scores_of(model, text, criterion="comprehensiveness", beam=beam)))
        worths.append(worth(order, count, p, "comprehensiveness"))
    assert worths == sorted(worths)
    taken: list[int] = []
    everyone = frozenset(range(count))
    while len(taken) < count:
        rest = [i for i in range(count) if i not in taken]
        taken.append(min(rest, key=lambda i: p[everyone - {*taken, i}]))
    greedy = np.argsort(-scores_of(model, text, criterion="comprehensiveness", beam=1))
    assert greedy.tolist() == taken


def test_the_shift_makes_most_signs_agree():
    ranks = np.array([3.0, 0.0, 2.0, 1.0])
    np.testing.assert_array_equal(_shift_ranks(ranks, np.array([0.4, -0.1, 0.2, -0.3])), [1.5, -1.5, 0.5, -0.5])
    np.testing.assert_array_equal(_shift_ranks(ranks, np.full(4, -0.1)), ranks - 3.5)
    np.testing.assert_array_equal(_shift_ranks(ranks, np.full(4, 1e-9)), ranks + 0.5)


def test_batching_changes_nothing(model):
    texts = [*SENTENCES[:3], "two women", "rain"]
    params = {"beam": 3, "target": 1}
    together = expound.attribute(model, texts, "solvex", **params)
    single = expound.attribute(model, texts[::-1], "solvex", batch_size=1, **params)
    for one, other in zip(together, list(single)[::-1], strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_bad_choices_are_errors(model):
    batch = model.encode(["two women"])
    with pytest.raises(ExpoundError, match="beam of at least 1, got 0"):
        expound.explainer("solvex", beam=0).attribute(model, batch)
    with pytest.raises(ExpoundError, match="Did you mean 'sufficiency'"):
        expound.explainer("solvex", criterion="suficiency").attribute(model, batch)
    regression = expound.load(tiny("bert", num_labels=1), processor("bert"))
    with pytest.raises(ExpoundError, match="a regression has none"):
        expound.explainer("solvex", criterion="log_odds").attribute(regression, batch)


def test_ranks_stay_distinct_in_half_precision(monkeypatch):
    model = expound.load(tiny("bert", dtype=torch.bfloat16), processor("bert"))
    weights = torch.linspace(0.1, 1, 300, dtype=torch.float64)
    monkeypatch.setattr(
        solvex, "coalition_values", lambda m, b, t, present, unit, perturbation: present.double() @ weights
    )
    batch = expound.Batch.from_ids(torch.full((1, 300), 7))
    method = expound.explainer("solvex", beam=1, criterion="comprehensiveness")
    scores = method.attribute(model, batch, torch.tensor([0]))[0]
    assert scores.argsort().tolist() == list(range(300))
    assert len(scores.unique()) == 300
