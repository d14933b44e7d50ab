"""Metrics that take words or tokens away one after another, and those of random sets."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers as hf
from captum.metrics import infidelity as captum_infidelity
from scipy.stats import spearmanr

import expound
import families
from expound.errors import ExpoundError
from expound.explainers.perturbation.coalitions import coalition_values
from expound.explainers.perturbation.context_cite import ablation_masks
from expound.explainers.seeding import draw_numbers
from expound.explainers.units import number_units
from expound.metrics import METRICS, metric
from expound.metrics.faithfulness.ablation import compute_lds
from expound.metrics.faithfulness.soft import SoftErasure
from expound.metrics.faithfulness.unit_order import UnitMetric
from judged import OneByOne, attribution_for, inputs_of, model_of

NAMES = [name for name, kind in METRICS.items() if issubclass(kind, UnitMetric | SoftErasure)]
CASES = [("bert", "word", "mask"), ("bert", "token", "remove"), ("gpt2", "word", "remove"), ("vit", "token", "mask")]


def order_units(family, level, perturbation, head="SequenceClassification"):
    """A model, a batch, scores, and for each example its units (lists of positions) by falling score and `OneByOne`."""
    model = model_of(family, dtype=torch.float64) if family == "vit" else model_of(family, head, dtype=torch.float64)
    batch = model.encode(inputs_of(family, head)[:3])
    scores, target = attribution_for(batch).double(), model.predict(batch)
    unit, rows = number_units(batch, level), []
    for row in range(len(batch)):
        members = [(unit[row] == number).nonzero().flatten().tolist() for number in range(int(unit[row].max()) + 1)]
        total = [float(scores[row, own].sum()) for own in members]
        order = sorted(range(len(members)), key=lambda number, total=total: -total[number])
        rows.append(([members[number] for number in order], OneByOne(model, batch, row, target, perturbation)))
    return model, batch, scores, rows


def join_groups(groups):
    return [position for group in groups for position in group]


@pytest.mark.parametrize(("family", "level", "perturbation"), CASES)
def test_areas_equal_brute_force_curves(family, level, perturbation):
    model, batch, scores, rows = order_units(family, level, perturbation)
    for steps in (50, 3):
        found = {
            name: metric(name, unit=level, perturbation=perturbation, n_steps=steps).evaluate(model, batch, scores)[
                name
            ]
            for name in ("deletion_auc", "insertion_auc")
        }
        for row, (order, answer) in enumerate(rows):
            count = len(order)
            sizes = [int(i * count / min(steps, count) + 0.5) for i in range(min(steps, count) + 1)]
            for name, value in found.items():
                gone = (order[size:] if name == "insertion_auc" else order[:size] for size in sizes)
                points = [answer(join_groups(groups)) for groups in gone]
                area = np.trapezoid(points, np.array(sizes) / count)
                assert float(value[row]) == pytest.approx(area, abs=1e-6)


@pytest.mark.parametrize(("family", "level", "perturbation"), CASES)
def test_decision_flip_equals_brute_force(family, level, perturbation):
    model, batch, scores, rows = order_units(family, level, perturbation)
    found = metric("decision_flip", unit=level, perturbation=perturbation).evaluate(model, batch, scores)[
        "decision_flip"
    ]
    for row, (order, answer) in enumerate(rows):
        decisions = [_decision(answer, join_groups(order[:size])) for size in range(len(order) + 1)]
        first = next((size for size, other in enumerate(decisions) if other != decisions[0]), len(order))
        assert float(found[row]) == pytest.approx(first / len(order))


def _decision(answer, positions):
    """The most likely class, from one question per class."""
    own, answers = answer.target, []
    for number in range(len(answer.model.labels)):
        answer.target = number
        answers.append(answer(positions))
    answer.target = own
    return int(np.argmax(answers))


def test_decisions_do_flip_with_the_right_word():
    bert = families.tiny("bert", dtype=torch.float64)
    model = expound.load(bert, families.processor("bert"))
    batch = model.encode(families.examples("bert")[:4])
    with torch.no_grad():  # the decision lies between the text and the text of masks
        ends = model.predict_perturbed(batch, torch.stack([batch.content, ~batch.content]), "mask")[:, 0].log()
        bert.classifier.bias -= ends.mean(0)
    drops = expound.explainer("occlusion").attribute(model, batch)
    found = metric("decision_flip").evaluate(model, batch, drops)["decision_flip"]
    count = metric("decision_flip").order_units(batch, drops).counts
    assert ((found * count).round() / count - found).abs().max() < 1e-6
    assert (found < 1).any()
    assert (metric("decision_flip").evaluate(model, batch, -drops)["decision_flip"] >= found).all()


@pytest.mark.parametrize("normalize", [True, False])
def test_infidelity_is_captum_s(normalize):
    model = model_of("bert", dtype=torch.float64)
    batch = model.encode([families.SENTENCES[0]])
    scores, target = attribution_for(batch).double(), model.predict(batch)
    unit = number_units(batch, "word")
    count = int(unit.max()) + 1
    judge = metric("infidelity", n_samples=20, normalize=normalize, seed=5)
    taken = draw_numbers(batch, torch.tensor([count]), 20, 5) < 0.5

    def answers(presence):
        return coalition_values(model, batch, target, presence[:, None] > 0, unit, "mask")[:, 0].double()

    whole = torch.ones(1, count, dtype=torch.float64)
    expected = captum_infidelity(
        answers,
        lambda inputs: (taken[: len(inputs), 0].double(), inputs - taken[: len(inputs), 0].double()),
        whole,
        torch.stack([scores[0][unit[0] == number].sum() for number in range(count)])[None],
        n_perturb_samples=20,
        normalize=normalize,
    )
    assert float(judge.evaluate(model, batch, scores, target)["infidelity"]) == pytest.approx(float(expected), rel=1e-5)


def test_an_additive_answer_has_no_infidelity_and_the_best_rank_correlation():
    scores = torch.tensor([[0.3, -0.1, 0.2, 0.0]]).double()
    present = torch.from_numpy(ablation_masks(32, 4))[:, None]
    answers = 0.4 + (present * scores).sum(-1)
    assert float(compute_lds(scores, present, answers)) == pytest.approx(1)
    assert float(compute_lds(-2 * scores, present, answers)) == pytest.approx(-1)
    assert compute_lds(0 * scores, present, answers).isnan().all()
    assert compute_lds(scores, present, 0 * answers).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lds_of_constant_scores_ranks_sets_by_their_size(dtype):
    """0.1 + 0.7 is not 0.7 + 0.1 for a computer: sums of equal scores differ by rounding."""
    generator = torch.Generator().manual_seed(0)
    sets = torch.rand(40, 1, 9, generator=generator) < 0.5
    answers = torch.randn(40, 1, generator=generator).double()
    scores = torch.full((1, 9), 0.1, dtype=dtype)
    # Shares of a unit's tokens, summed in another order for each unit.
    noisy = scores * (1 + 3e-7 * torch.randn(1, 9, generator=generator, dtype=dtype))
    expected = spearmanr(sets.sum(-1)[:, 0], answers[:, 0]).statistic
    for given in (scores, noisy):
        assert float(compute_lds(given, sets, answers)) == pytest.approx(expected, abs=1e-12)
    different = scores * torch.linspace(1, 2, 9, dtype=dtype)
    assert float(compute_lds(different, sets, answers)) == pytest.approx(
        spearmanr((sets * different).sum(-1)[:, 0].round(decimals=4), answers[:, 0]).statistic, abs=1e-12
    )


@pytest.mark.real
def test_masks_and_lds_equal_published_ones(golden_generation):
    published = np.load(golden_generation / "llama-tiny_contextcite_f64.npz")
    sources = published["masks"].shape[1]
    np.testing.assert_array_equal(ablation_masks(64, sources), published["masks"])
    present = ablation_masks(32, sources, seed=1000)
    np.testing.assert_array_equal(present, published["test_masks"])
    weights, outputs = (torch.from_numpy(published[name])[None] for name in ("weights_exact", "test_outputs"))
    got = compute_lds(weights, torch.from_numpy(present)[:, None], outputs.T)
    assert float(got) == pytest.approx(float(published["lds"]), abs=1e-12)


@pytest.mark.real
def test_ablations_of_a_prompt_s_sources_equal_published_ones(golden_generation):
    published = np.load(golden_generation / "llama-tiny_contextcite_f64.npz")
    model = expound.load(golden_generation / "llama-tiny", task="generation", device="cpu", dtype="float64")
    ids = published["prompt_ids"]
    unit_of, start = np.full(len(ids), -1), 3
    for number, source in enumerate(published["sources"]):
        length = len(source.split())
        unit_of[start : start + length] = number
        start += length
    batch = model.batch(ids, published["response_ids"], content=unit_of >= 0, unit_of=unit_of)
    unit = number_units(batch, "source")
    assert int(unit.max()) + 1 == len(published["sources"])
    weights = torch.from_numpy(published["weights_exact"])
    scores = torch.where(unit >= 0, (weights / torch.bincount(unit[unit >= 0]))[unit], 0.0)
    judge = {"unit": "source", "perturbation": "remove"}
    assert float(metric("lds", **judge).evaluate(model, batch, scores)["lds"]) == pytest.approx(float(published["lds"]))
    for k, drop in zip(published["topk_drop_k"].tolist(), published["topk_drop"], strict=True):
        got = metric("topk_drop", k=k, **judge).evaluate(model, batch, scores)["topk_drop"]
        assert float(got) == pytest.approx(float(drop), rel=1e-5)


def rank_with_ties(values):
    """Ranks of the values, with ties within a millionth of the largest value."""
    least, going_up = 1e-6 * max(map(abs, values)), sorted(values)
    steps = [high for low, high in pairwise(going_up) if high - low > least]
    return [sum(value >= step for step in steps) for value in values]


@pytest.mark.parametrize(("family", "level", "perturbation"), CASES)
def test_lds_and_topk_drop_equal_brute_force(family, level, perturbation):
    model, batch, scores, rows = order_units(family, level, perturbation)
    unit = number_units(batch, level)
    found = metric("lds", unit=level, perturbation=perturbation, n_samples=12).evaluate(model, batch, scores)["lds"]
    judges = {k: metric("topk_drop", unit=level, perturbation=perturbation, k=k) for k in (1, 3, 999)}
    drops = {k: judge.evaluate(model, batch, scores)["topk_drop"] for k, judge in judges.items()}
    for row, (order, answer) in enumerate(rows):
        masks = ablation_masks(12, len(order), seed=1000)
        inside = [(p, int(unit[row, p])) for p in answer.content if unit[row, p] >= 0]  # a blank alone is in no word
        gone = [[p for p, number in inside if not mask[number]] for mask in masks]
        predicted = [sum(float(scores[row, p]) for p, number in inside if mask[number]) for mask in masks]
        expected = spearmanr(
            rank_with_ties(predicted), rank_with_ties([np.log(answer(each)) for each in gone])
        ).statistic
        assert float(found[row]) == pytest.approx(expected, abs=1e-5)
        for k, values in drops.items():
            fall = np.log(answer(())) - np.log(answer(join_groups(order[:k])))
            assert float(values[row]) == pytest.approx(fall, abs=1e-5)


@functools.cache
def make_case(kind):
    """A model that does not classify, and a batch for it."""
    if kind == "generation":
        decoder = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("llama", **families.TEXT["llama"])).eval()
        model = expound.load(decoder, task="generation")
        return model, model.batch([list(range(40, 47)), list(range(50, 54))], [[60, 61], [62]])
    if kind == "span":
        model = model_of("bert", "QuestionAnswering")
        return model, model.encode(inputs_of("bert", "QuestionAnswering"))
    model = model_of("bert", num_labels=1)
    return model, model.encode(families.SENTENCES[:2])


@pytest.mark.parametrize("kind", ["span", "regression", "generation"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "f_fidelity"])
def test_every_other_task_is_judged_or_refused(name, kind):
    model, batch = make_case(kind)
    judge = metric(name, beam=2) if "naopc" in name else metric(name)
    if judge.supports(model):
        assert judge.evaluate(model, batch, attribution_for(batch))[name].isfinite().all()
    else:
        with pytest.raises(ExpoundError, match=f"a {kind} "):
            judge.evaluate(model, batch, attribution_for(batch))


def test_wrong_parameters_are_refused():
    cases = [
        ("deletion_auc?n_steps=0", "n_steps of at least 1"),
        ("infidelity?n_samples=0", "n_samples of at least 1"),
        ("lds?keep_probability=1", "between 0 and 1"),
        ("lds?n_samples=0", "n_samples of at least 1"),
        ("topk_drop?k=0", "k of at least 1"),
        ("decision_flip?unit=phrase", "Valid choices"),
    ]
    for spec, message in cases:
        with pytest.raises(ExpoundError, match=message):
            metric(spec)
