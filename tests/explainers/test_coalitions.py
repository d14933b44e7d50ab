from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import expound
from expound.errors import ExpoundError
from expound.explainers.perturbation.kernel_shap import KernelShap
from expound.explainers.perturbation.lime import Lime
from expound.explainers.perturbation.shapley_sampling import ShapleySampling
from expound.explainers.units import number_units
from families import SENTENCES, processor, tiny

TEXTS = ["a moving film", "the plot is dull , but funny", "two women"]
METHODS = (Lime, KernelShap, ShapleySampling)


@pytest.fixture(scope="module")
def model():
    hf = tiny("bert")
    with torch.no_grad():
        hf.classifier.weight.mul_(8)
    return expound.load(hf, processor("bert"))


def subset_values(model, text, target, unit_name, perturbation):
    """The number of a text's units, and v of each subset of them, computed one by one."""
    batch = model.encode([text])
    unit = number_units(batch, unit_name)[0]
    count = int(unit.max()) + 1
    values = {}
    for number in range(2**count):
        members = frozenset(i for i in range(count) if number >> i & 1)
        keep = torch.tensor([int(u) in members for u in unit])[None, None]
        values[members] = float(model.predict_perturbed(batch, keep, perturbation)[0, 0, target])
    return count, values


def shapley_by_orders(count, values):
    """Shapley values by definition: the mean rise over all n! orders."""
    phi = np.zeros(count)
    orders = list(permutations(range(count)))
    for order in orders:
        for position, i in enumerate(order):
            before = frozenset(order[:position])
            phi[i] += values[before | {i}] - values[before]
    return phi / len(orders)


def word_scores(model, method, text, target, unit_name):
    batch = model.encode([text])
    scores = method.attribute(model, batch, torch.tensor([target]))[0]
    unit = number_units(batch, unit_name)[0]
    return torch.stack([scores[unit == i].sum() for i in range(int(unit.max()) + 1)]).numpy()


@pytest.mark.parametrize("kind", [KernelShap, ShapleySampling])
@pytest.mark.parametrize(("unit_name", "perturbation"), [("word", "remove"), ("word", "mask"), ("token", "remove")])
def test_all_subsets_give_the_exact_shapley_values(model, kind, unit_name, perturbation):
    for text in TEXTS if unit_name == "word" else TEXTS[:1]:
        count, values = subset_values(model, text, 1, unit_name, perturbation)
        exact = shapley_by_orders(count, values)
        assert np.abs(exact).max() > 1e-3
        method = kind(n_samples=512, unit=unit_name, perturbation=perturbation)
        np.testing.assert_allclose(word_scores(model, method, text, 1, unit_name), exact, atol=1e-5)


def test_sampled_shapley_values_are_close_and_add_up(model):
    text = "the plot is dull , but nobody laughs"
    count, values = subset_values(model, text, 0, "word", "mask")
    exact = word_scores(model, ShapleySampling(256, perturbation="mask"), text, 0, "word")
    for kind in (KernelShap, ShapleySampling):
        sampled = word_scores(model, kind(200, perturbation="mask"), text, 0, "word")
        assert 1e-9 < np.abs(sampled - exact).max() < 0.1 * np.abs(exact).max()
        total = values[frozenset(range(count))] - values[frozenset()]
        assert abs(sampled.sum() - total) < 1e-6


def test_lime_is_the_ridge_regression_of_scikit_learn(model):
    text, method = "the plot is dull , but funny", Lime(n_samples=256, kernel_width=0.4, alpha=0.7)
    count, values = subset_values(model, text, 2, "word", "remove")
    members = list(values)
    present = np.array([[i in s for i in range(count)] for s in members], float)
    weights = np.exp(-((1 - np.sqrt(present.mean(1))) ** 2) / (2 * 0.4**2)) * 256 / len(members)
    ridge = Ridge(alpha=0.7).fit(present, [values[s] for s in members], sample_weight=weights)
    np.testing.assert_allclose(word_scores(model, method, text, 2, "word"), ridge.coef_, atol=1e-6)


def test_lime_selects_its_features_as_the_lime_package():
    """Compare with `lime_base.py`: up to 6 features by the rise of R², more by the coefficients with alpha .01."""
    random = np.random.default_rng(0)
    present, answers = random.random((3, 40, 9)) < 0.5, random.random((3, 40))
    # The last example has fewer units than are selected.
    present[2, :, 3:] = False
    weights = np.exp(-((1 - np.sqrt(present.sum(2) / np.array([[9], [9], [3]]))) ** 2) / (2 * 0.25**2))
    for count in (1, 4, 7, 8, 20):
        ones = torch.ones(3, 40, dtype=torch.float64)
        solved = Lime(num_features=count).solve(torch.tensor(present).double(), ones, torch.tensor(answers))
        for sets, values, own, found in zip(present, answers, weights, solved.numpy(), strict=True):
            units, used = np.flatnonzero(sets.any(0)).tolist(), list[int]()
            if count > 6:
                strengths = np.abs(Ridge(alpha=0.01).fit(sets[:, units], values, sample_weight=own).coef_)
                used = np.array(units)[np.argsort(-strengths)[:count]].tolist()
            while len(used) < min(count, len(units)):
                fits = []
                for unit in set(units) - set(used):
                    some = sets[:, [*used, unit]]
                    fits.append((Ridge(alpha=0).fit(some, values, own).score(some, values, own), unit))
                used.append(max(fits)[1])
            expected = np.zeros(9)
            expected[used] = Ridge(alpha=1).fit(sets[:, used], values, sample_weight=own).coef_
            np.testing.assert_allclose(found, expected, atol=1e-10)


def test_lime_without_a_penalty_is_the_same_in_a_batch_and_alone(model):
    method, batch = Lime(n_samples=256, alpha=0.0), model.encode(TEXTS)
    together = method.attribute(model, batch, torch.tensor([0, 0, 0]))
    for row in range(len(TEXTS)):
        single, columns = batch.select([row]).trim_padding()
        alone = method.attribute(model, single, torch.tensor([0]))[0]
        torch.testing.assert_close(together[row, columns], alone, rtol=1e-4, atol=1e-6)
    with pytest.raises(ExpoundError, match="alpha above 0"):
        Lime(n_samples=4, alpha=0.0).attribute(model, batch, torch.tensor([0, 0, 0]))


@pytest.mark.parametrize("wrong", [{"kernel_width": 0.0}, {"kernel_width": -1.0}, {"alpha": -0.1}])
def test_lime_names_what_its_parameters_may_be(wrong):
    with pytest.raises(ExpoundError, match="kernel_width above 0 and an alpha of at least 0"):
        Lime(**wrong)


def test_lime_draws_units_with_probability_one_half_after_the_full_input():
    drawn = Lime(n_samples=4000).draw(15, np.random.default_rng(0))
    assert drawn.present[0].all()
    assert abs(drawn.present[1:].mean() - 0.5) < 0.01


def test_kernel_shap_draws_sizes_from_the_kernel_in_pairs():
    drawn = KernelShap(n_samples=20_002).draw(5, np.random.default_rng(0))
    present = drawn.present[2:]
    assert (present[:10_000] ^ present[10_000:]).all()
    share = np.bincount(present.sum(1), minlength=6)[1:5] / len(present)
    kernel = np.array([1 / (s * (5 - s)) for s in range(1, 5)])
    np.testing.assert_allclose(share, kernel / kernel.sum(), atol=0.01)
    np.testing.assert_allclose(present.mean(0), 0.5)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("perturbation", ["remove", "mask"])
def test_scores_depend_on_the_seed_and_not_on_batching(model, kind, perturbation):
    texts = [*SENTENCES, *TEXTS]
    params = {"n_samples": 60, "perturbation": perturbation, "seed": 7}
    together = expound.attribute(model, texts, kind.card.name, target=1, **params)
    single = expound.attribute(model, texts[::-1], kind.card.name, target=1, batch_size=1, **params)
    for one, other in zip(together, list(single)[::-1], strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    reseeded = expound.attribute(model, texts, kind.card.name, target=1, **params | {"seed": 8})
    assert np.abs(together[0].scores - reseeded[0].scores).max() > 1e-6


@pytest.mark.parametrize("kind", METHODS)
def test_equal_inputs_are_run_once_and_no_more_than_asked(model, kind, monkeypatch):
    rows = []
    run = type(model.model).forward
    monkeypatch.setattr(
        type(model.model),
        "forward",
        lambda self, input_ids, **k: (rows.append(len(input_ids)), run(self, input_ids, **k))[1],
    )
    batch = model.encode(["two women in the rain"])
    kind(n_samples=100).attribute(model, batch, torch.tensor([0]))
    assert sum(rows) <= 2**5
    rows.clear()
    kind(n_samples=30).attribute(model, batch, torch.tensor([0]))
    assert sum(rows) <= 30


@pytest.mark.parametrize("kind", METHODS)
def test_long_texts_with_few_samples_stay_finite(model, kind):
    batch = model.encode([" ".join(SENTENCES)])
    scores = kind(n_samples=10).attribute(model, batch, torch.tensor([0]))
    assert torch.isfinite(scores).all()
    assert scores.abs().max() > 0


@pytest.mark.parametrize("kind", METHODS)
def test_too_few_samples_are_an_error(model, kind):
    with pytest.raises(ExpoundError, match="n_samples of at least 4, got 3"):
        kind(n_samples=3).attribute(model, model.encode(["two women"]), torch.tensor([0]))
