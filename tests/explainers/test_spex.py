"""Interactions of pairs: exact for few units by definition, planted ones found among many, stored and drawn."""

from __future__ import annotations

import sys
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch

import expound
from expound import Explanations, ExpoundError, explainer
from expound.explainers.perturbation.coalitions import all_subsets, coalition_values
from expound.explainers.perturbation.spex import fit_proxy, moebius_transform, shapley_values
from expound.explainers.units import number_units
from small import alone, shared

TEXT = "a moving film about nothing"


def interactions_by_definition(value, count):
    """Shapley interactions of pairs: mean second differences over sets of the others, by their sizes' weights."""
    found = np.zeros((count, count))
    for i, j in combinations(range(count), 2):
        others = [k for k in range(count) if k not in (i, j)]
        for size in range(len(others) + 1):
            weight = factorial(size) * factorial(count - size - 2) / factorial(count - 1)
            for chosen in combinations(others, size):
                s = frozenset(chosen)
                found[i, j] += weight * (value[s | {i, j}] - value[s | {i}] - value[s | {j}] + value[s])
    return found + found.T


def test_transform_and_interactions_by_definition():
    values = np.random.default_rng(0).random(32)
    found, sets = moebius_transform(values), all_subsets(5)
    for own, value in zip(sets, values, strict=True):
        present = set(np.flatnonzero(own).tolist())
        assert sum(m for part, m in found.items() if present.issuperset(part)) == pytest.approx(value)
    alone, together = shapley_values(found, 5)
    value = {frozenset(np.flatnonzero(own).tolist()): v for own, v in zip(sets, values, strict=True)}
    np.testing.assert_allclose(together, interactions_by_definition(value, 5), atol=1e-12)
    assert alone.sum() == pytest.approx(values[-1] - values[0])


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_few_words_are_exact(family):
    model = shared(family)
    batch = model.encode([TEXT, "dull"])
    target, unit = model.predict(batch), number_units(batch, "word")
    found = explainer("spex?n_samples=32").explain(model, batch, target)
    exact = explainer("kernel_shap?n_samples=64").attribute(model, batch, target)
    torch.testing.assert_close(found.scores, exact, rtol=1e-8, atol=1e-12)
    sets = all_subsets(5)
    answers = coalition_values(model, batch, target, torch.from_numpy(sets)[:, None].repeat(1, 2, 1), unit, "remove")
    value = {frozenset(np.flatnonzero(own).tolist()): float(v) for own, v in zip(sets, answers[:, 0], strict=True)}
    member = (unit[0][None] == torch.arange(5)[:, None]).double()
    torch.testing.assert_close(
        member @ found.pairs[0] @ member.T, torch.from_numpy(interactions_by_definition(value, 5))
    )
    assert not found.pairs[1].any()


def test_many_words_have_equal_scores_alone_and_in_a_batch():
    model, method = shared("bert"), explainer("spex?n_samples=64")
    batch = model.encode(["the plot is dull , but nobody laughs here", "a film"])
    together = method.explain(model, batch, torch.tensor([0, 1]))
    own, columns = alone(model, batch, 0)
    single = method.explain(model, own, torch.tensor([0]))
    torch.testing.assert_close(together.scores[0, columns], single.scores[0])
    torch.testing.assert_close(together.pairs[0, columns, columns], single.pairs[0])
    assert single.scores.any()


def test_planted_pairs_are_found_among_many():
    def value(sets):
        present = sets.astype(float)
        return 2 * present[:, 1] * present[:, 7] - 1.5 * present[:, 3] * present[:, 10] + 0.8 * present[:, 2]

    alone, together = shapley_values(fit_proxy(value, 12, 160, 0), 12)
    strongest = sorted(combinations(range(12), 2), key=lambda pair: -abs(together[pair]))
    assert strongest[:2] == [(1, 7), (3, 10)]
    assert together[1, 7] == pytest.approx(2, abs=0.1)
    assert together[3, 10] == pytest.approx(-1.5, abs=0.1)
    assert alone[[1, 7]] == pytest.approx([1, 1], abs=0.1)
    assert abs(together[strongest[2]]) < 0.1
    assert shapley_values(fit_proxy(lambda sets: np.ones(len(sets)), 12, 64, 0), 12)[0].sum() == 0


def test_interactions_are_stored_and_rendered(tmp_path, monkeypatch):
    result = expound.attribute(shared("bert"), [TEXT], method="spex", n_samples=32)
    (item,) = result
    assert 0 < len(item.interactions) <= 10
    assert (sizes := [abs(value) for *_, value in item.interactions]) == sorted(sizes, reverse=True)
    result.save(tmp_path / "new")
    assert Explanations.load(tmp_path / "new") == result
    page = result.to_html()
    assert page.count("<path class") == len(item.interactions)
    one, other, _ = item.interactions[0]
    assert f"{item.units[one].text} – {item.units[other].text}: " in page
    assert "<path class" not in expound.attribute(shared("bert"), [TEXT], method="random").to_html()


def test_too_few_samples_and_a_missing_extra_are_errors(monkeypatch):
    with pytest.raises(ExpoundError, match="at least 4"):
        explainer("spex?n_samples=2")
    with pytest.raises(ExpoundError, match="at least 64 for 12 units"):
        fit_proxy(lambda sets: sets.sum(1), 12, 32, 0)
    monkeypatch.setitem(sys.modules, "shapiq", None)
    with pytest.raises(ExpoundError, match=r"expound\[interactions\]"):
        fit_proxy(lambda sets: sets.sum(1), 12, 64, 0)
