from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
import transformers as hf

import families
from expound.errors import ExpoundError
from expound.explainers.units import number_units
from expound.metrics import METRICS, metric
from expound.metrics.faithfulness.naopc import Naopc, beam_limits, exact_extremes, exact_limits
from expound.models import Batch, ExplainedModel
from judged import OneByOne, attribution_for, model_of

NAMES = [name for name, kind in METRICS.items() if issubclass(kind, Naopc)]
ROWS = range(4)


def make_lookup(values):
    """A function from sets of units to Δ [B, M], looked up in answers [B, 2^n] numbered by the missing units."""

    def drops(taken):
        index = (taken.numpy() * (1 << np.arange(taken.shape[2]))).sum(2).T
        return values[:, :1] - np.take_along_axis(values, index, 1)

    return drops


@pytest.fixture
def golden_numbers(golden_generation):
    found = dict(np.load(golden_generation / "bert-tiny_naopc_f64.npz"))
    return {name: array if name.endswith(("ids", "_id")) else array.astype(np.float64) for name, array in found.items()}


@pytest.mark.real
@pytest.mark.parametrize("row", ROWS)
def test_limits_equal_published_ones(golden_numbers, row):
    count = int(golden_numbers["lengths"][row])
    values = golden_numbers["values"][row : row + 1, : 1 << count]
    lower, upper = exact_limits(make_lookup(values), [count])[0]
    np.testing.assert_allclose([lower, upper], [golden_numbers["lower"][row], golden_numbers["upper"][row]], atol=1e-15)
    narrow = beam_limits(make_lookup(values), [count], 1)[0]
    np.testing.assert_allclose(
        narrow, [golden_numbers["lower_beam1"][row], golden_numbers["upper_beam1"][row]], atol=1e-15
    )
    # The reference keeps several orders of one set, we the best alone: with as wide a beam ours reach at least as far.
    low, high = beam_limits(make_lookup(values), [count], 3)[0]
    assert lower - 1e-15 <= low <= golden_numbers["lower_beam3"][row] + 1e-15
    assert upper + 1e-15 >= high >= golden_numbers["upper_beam3"][row] - 1e-15


@pytest.mark.real
@pytest.mark.parametrize("row", ROWS)
def test_values_equal_published_ones(golden_numbers, golden, row):
    path = golden / "bert-tiny"
    bert = hf.AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float64).eval()
    bert.config.mask_token_id = int(golden_numbers["mask_id"])
    model = ExplainedModel(bert)
    count = int(golden_numbers["lengths"][row])
    ids = torch.from_numpy(golden_numbers["ids"])[row : row + 1, : count + 2]
    content = torch.zeros_like(ids, dtype=torch.bool)
    content[:, 1 : count + 1] = True
    scores = torch.zeros(ids.shape, dtype=torch.float64)
    scores[0, 1 : count + 1] = torch.from_numpy(golden_numbers["scores"][row, :count])
    batch = Batch.from_ids(ids, content=content)
    for name, key in (("naopc_comprehensiveness", "ncomp"), ("naopc_sufficiency", "nsuff")):
        got = float(metric(name).evaluate(model, batch, scores)[name])
        assert got == pytest.approx(golden_numbers[key][row], abs=1e-6)


def aopc_of_orders(values, count):
    """AOPC of every order of the units, unit by unit."""
    found = []
    for order in permutations(range(count)):
        taken, total = 0, 0.0
        for unit in order:
            taken |= 1 << unit
            total += values[0] - values[taken]
        found.append(total / count)
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_limits_are_those_of_all_orders(count):
    random = np.random.default_rng(count)
    for sign in (1, -1):
        values = sign * np.abs(random.normal(size=1 << count))
        everything = aopc_of_orders(values, count)
        assert exact_extremes(values[0] - values) == pytest.approx((min(everything), max(everything)), abs=1e-12)
        wide = beam_limits(make_lookup(values[None]), [count], 1 << count)[0]
        assert wide == pytest.approx([min(everything), max(everything)], abs=1e-12)


def test_beam_limits_are_inside_the_exact_ones_and_equal_with_a_wide_beam():
    random = np.random.default_rng(0)
    values = random.normal(size=(3, 1 << 7))
    exact = exact_limits(make_lookup(values), [7, 7, 7])
    for beam in (1, 2, 200):
        found = beam_limits(make_lookup(values), [7, 7, 7], beam)
        assert (found[:, 0] >= exact[:, 0] - 1e-12).all()
        assert (found[:, 1] <= exact[:, 1] + 1e-12).all()
    np.testing.assert_allclose(found, exact, atol=1e-12)


@pytest.mark.parametrize(("family", "level", "perturbation"), [("bert", "word", "mask"), ("gpt2", "token", "remove")])
def test_agrees_with_all_orders_asked_one_by_one(family, level, perturbation):
    model = model_of(family, dtype=torch.float64)
    batch = model.encode(["a moving film", "the plot is dull"] if level == "word" else ["a film", "dull"])
    target, scores = model.predict(batch), attribution_for(batch).double() + torch.linspace(0, 0.1, batch.length)
    unit = number_units(batch, level)
    got = {
        name: metric(name, unit=level, perturbation=perturbation).evaluate(model, batch, scores)[name] for name in NAMES
    }
    for row in range(len(batch)):
        answer = OneByOne(model, batch, row, target, perturbation)
        count = int(unit[row].max()) + 1
        assert count <= 5  # premise: all orders can be asked for
        values = [
            answer([p for p in answer.content if number >> int(unit[row, p]) & 1]) for number in range(1 << count)
        ]
        own = [float(scores[row][unit[row] == number].sum()) for number in range(count)]
        everything = aopc_of_orders(np.array(values), count)
        for name, sign in (("naopc_comprehensiveness", -1), ("naopc_sufficiency", 1)):
            order = tuple(sorted(range(count), key=lambda number, s=sign: s * own[number]))
            mine = everything[list(permutations(range(count))).index(order)]
            expected = (mine - min(everything)) / (max(everything) - min(everything))
            assert float(got[name][row]) == pytest.approx(expected, abs=1e-5)
            assert -1e-6 <= float(got[name][row]) <= 1 + 1e-6


def test_the_best_order_scores_one_and_reversing_it_swaps_the_metrics():
    model = model_of("bert", dtype=torch.float64)
    batch = model.encode(["the plot is dull"])
    unit = number_units(batch, "word")[0]
    every = torch.tensor(list(permutations(range(4)))).double()
    size = torch.bincount(unit[unit >= 0])  # a word's score is its tokens' sum
    scores = torch.where(unit >= 0, (every / size)[:, unit], 0.0)
    found = [
        metric(name).evaluate(model, batch.select([0] * 24), sign * scores)[name]
        for name, sign in (("naopc_comprehensiveness", 1), ("naopc_sufficiency", -1))
    ]
    assert torch.equal(*found)
    assert (float(found[0].min()), float(found[0].max())) == pytest.approx((0, 1), abs=1e-6)


def test_limits_are_computed_once_for_all_methods_and_both_metrics(monkeypatch):
    model = model_of("bert")
    batch = model.encode(families.SENTENCES[:2])
    every = batch.select([0, 1] * 3)
    attribution = torch.cat([attribution_for(batch, seed) for seed in range(3)])
    found, search = [], Naopc._compute_limits

    def record_call(self, model, batch, target):
        found.append(len(batch))
        return search(self, model, batch, target)

    monkeypatch.setattr(Naopc, "_compute_limits", record_call)
    with model.cache_perturbed():
        values = [metric(name).evaluate(model, every, attribution)[name] for name in NAMES]
        assert found == [2]
        metric("naopc_sufficiency", perturbation="pad").evaluate(model, every, attribution)
        metric("naopc_sufficiency").evaluate(model, every, attribution, 1 - model.predict(every).clamp(max=1))
        assert found == [2, 2, 2]  # limits of another perturbation, and of another target
    for row in range(6):
        alone = metric(NAMES[0]).evaluate(model, every.select([row]), attribution[row : row + 1])[NAMES[0]]
        assert float(alone) == pytest.approx(float(values[0][row]), abs=1e-5)


def test_max_units_divides_long_texts_into_segments():
    model = model_of("bert")
    batch = model.encode(families.SENTENCES[:2])
    judge = metric("naopc_comprehensiveness?max_units=4")
    unit = judge.units(batch)
    assert unit.amax(1).tolist() == [3, 3]
    for row in range(2):
        inside = unit[row][unit[row] >= 0]
        words = number_units(batch, "word")[row][unit[row] >= 0]
        sizes = [len(words[inside == number].unique()) for number in range(4)]
        assert (inside.diff() >= 0).all()
        assert max(sizes) - min(sizes) <= 1
    value = judge.evaluate(model, batch, attribution_for(batch))["naopc_comprehensiveness"]
    assert ((value >= 0) & (value <= 1)).all()
    short = model.encode(["the plot is dull"])
    assert torch.equal(metric("naopc_comprehensiveness?max_units=99").units(short), number_units(short, "word"))


def test_naopc_is_nan_if_all_orders_score_the_same():
    bert = families.tiny("bert")
    with torch.no_grad():
        bert.classifier.weight.zero_()
    model = ExplainedModel(bert, families.processor("bert"))
    batch = model.encode(families.SENTENCES[:2])
    for name in NAMES:
        assert metric(name).evaluate(model, batch, attribution_for(batch))[name].isnan().all()


@pytest.mark.parametrize("params", [{"beam": 0}, {"max_units": 0}, {"unit": "phrase"}, {"perturbation": "delete"}])
def test_wrong_parameters_are_refused(params):
    with pytest.raises(ExpoundError):
        metric("naopc_comprehensiveness", **params)
