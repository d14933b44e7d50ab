from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import families
from expound.errors import ExpoundError
from expound.metrics import METRICS, metric, preset
from expound.metrics.faithfulness.erasure import Erasure
from expound.models import Batch
from judged import OneByOne, attribution_for, inputs_of, model_of, top

FAITHFULNESS = [name for name, kind in METRICS.items() if issubclass(kind, Erasure)]
BUDGETS = (0.05, 0.2, 0.5)
CASES = [
    ("bert", "SequenceClassification", "remove"),
    ("bert", "SequenceClassification", "mask"),
    ("bert", "SequenceClassification", "pad"),
    ("gpt2", "SequenceClassification", "remove"),
    ("gpt2", "SequenceClassification", "mask"),
    ("vit", "ImageClassification", "mask"),
    ("bert", "QuestionAnswering", "remove"),
    ("bert", "QuestionAnswering", "mask"),
]
EPSILON = 1e-4


def formula(name, whole, without, alone, nothing):
    """The metric's value at one budget, by its published formula."""
    empty = 1 - max(0, whole - nothing) - EPSILON
    enough = 1 - max(0, whole - alone)
    return {
        "comprehensiveness": whole - without,
        "sufficiency": whole - alone,
        "comprehensiveness_minus_sufficiency": (whole - without) - (whole - alone),
        "log_odds": math.log(max(without, 1e-12)) - math.log(max(whole, 1e-12)),
        "normalized_comprehensiveness": min(1, max(0, max(0, whole - without) / (1 - empty))),
        "normalized_sufficiency": min(1, max(0, (enough - empty) / (1 - empty))),
    }[name.removeprefix("aopc_")]


def reference(name, answer, scores, budgets, rounding):
    """The value at each budget for one example, with one pass per perturbed input."""
    values = []
    for budget in budgets:
        first = top(scores, answer.content, budget, rounding, len(answer.attended))
        rest = [position for position in answer.content if position not in first]
        value = formula(name, answer(()), answer(first), answer(rest), answer(answer.content))
        values.append(value if first else 0.0)
    return values


def make_metric(name, perturbation, rounding):
    budgets = {"fractions": BUDGETS} if hasattr(METRICS[name], "fractions") else {"fraction": 0.2}
    return metric(name, perturbation=perturbation, rounding=rounding, **budgets)


@pytest.mark.parametrize("name", FAITHFULNESS)
@pytest.mark.parametrize(("family", "head", "perturbation"), CASES)
def test_agrees_with_erasing_one_input_at_a_time(name, family, head, perturbation):
    model = model_of(family) if family == "vit" else model_of(family, head)
    batch = model.encode(inputs_of(family, head))
    attribution, target = attribution_for(batch), model.predict(batch)
    rounding = {"remove": "floor", "mask": "ceil", "pad": "er"}[perturbation]
    judge = make_metric(name, perturbation, rounding)
    got = judge.evaluate(model, batch, attribution, target)[name]
    for row in range(len(batch)):
        answer = OneByOne(model, batch, row, target, perturbation)
        values = reference(name, answer, attribution[row].tolist(), judge.list_fractions(), rounding)
        sharp = "normalized" in name and max(0, answer(()) - answer(answer.content)) < 1e-3
        tolerance = 0.02 if sharp else 2e-4 if "normalized" in name else 1e-5
        assert float(got[row]) == pytest.approx(sum(values) / len(values), abs=tolerance)


def test_zero_vectors_agree_with_zeroed_embeddings():
    model = model_of("bert")
    batch = model.encode([families.SENTENCES[0]])
    attribution = attribution_for(batch)
    first = top(attribution[0].tolist(), batch.content[0].nonzero().flatten().tolist(), 0.2, "ceil", 0)
    embeddings = model.model.get_input_embeddings()(batch.inputs["input_ids"]).detach().clone()
    embeddings[0, first] = 0
    with torch.no_grad():
        inputs = {name: batch.inputs[name] for name in ("attention_mask", "token_type_ids")}
        without = model.model(inputs_embeds=embeddings, **inputs).logits.softmax(-1)[0, 1]
    expected = model.probabilities(batch)[0, 1] - without
    got = metric("comprehensiveness", perturbation="zero").evaluate(model, batch, attribution, 1)["comprehensiveness"]
    assert float(got) == pytest.approx(float(expected), abs=1e-6)


def additive_probability(keep):
    """p = 0.1 + 0.4, 0.2, 0.1, 0.05 for each of four positions that stays, to check numbers by hand."""
    return 0.1 + (keep * torch.tensor([0.4, 0.2, 0.1, 0.05])).sum(-1).double()


HALF = torch.tensor([[[True, True, False, False]]])


def test_by_hand():
    cases = [
        ("comprehensiveness", 0.85 - 0.25),
        ("sufficiency", 0.85 - 0.70),
        ("comprehensiveness_minus_sufficiency", 0.70 - 0.25),
        ("log_odds", math.log(0.25 / 0.85)),
        ("normalized_comprehensiveness", 0.60 / 0.7501),
        ("normalized_sufficiency", 1 - 0.15 / 0.7501),
    ]
    for name, expected in cases:
        assert float(metric(name).compute_effect(additive_probability, HALF)) == pytest.approx(expected, abs=1e-7)


def test_both_divisors_by_hand():
    points = torch.tensor([[0.1, -0.2], [0.2, 0.0], [0.6, 0.2]])
    assert metric("aopc_comprehensiveness").aggregate(points).tolist() == pytest.approx([0.3, 0.0])
    published = metric("aopc_comprehensiveness?divisor=fractions_plus_one")
    assert published.aggregate(points).tolist() == pytest.approx([0.225, 0.0])


def test_full_budgets_give_perfect_normalized_values():
    model = model_of("bert", dtype=torch.float64)
    batch = model.encode(families.examples("bert"))
    everything = {"fractions": (1.0,)}
    for perturbation in ("remove", "mask", "pad", "zero"):
        p = model.predict_perturbed(batch, torch.stack([batch.content, ~batch.content]), perturbation)
        drop = (p[0] - p[1]).amax(1)
        target = (p[0] - p[1]).argmax(1)
        attribution = attribution_for(batch)
        assert drop.min() > 1e-5  # premise: there is something to normalize by

        def value(name, perturbation=perturbation, target=target, attribution=attribution, **params):
            return (
                metric(name, perturbation=perturbation, **params)
                .evaluate(model, batch, attribution, target)[name]
                .double()
            )

        assert value("sufficiency", fraction=1.0).eq(0).all()
        assert value("normalized_sufficiency", **everything).eq(1).all()
        assert torch.allclose(value("normalized_comprehensiveness", **everything), drop / (drop + 1e-4), atol=1e-6)
        assert torch.allclose(value("comprehensiveness", fraction=1.0), drop, atol=1e-6)


def test_normalized_values_stay_in_bounds_if_an_empty_text_has_the_same_answer():
    p = {4: 0.3, 2: 0.1, 0: 0.5}  # p by the number of positions that stay
    for name, expected in (("normalized_comprehensiveness", 1.0), ("normalized_sufficiency", 0.0)):
        value = metric(name).compute_effect(
            lambda keep: torch.tensor([[p[int(n)] for n in row] for row in keep.sum(-1)]).double(), HALF
        )
        assert float(value) == expected


def test_a_budget_of_no_token_scores_zero():
    for name in FAITHFULNESS:
        model = model_of("bert")
        batch = model.encode(["river", "the river"])
        assert batch.content.sum(1).tolist() < [5, 5]
        judge = make_metric(name, "remove", "floor")
        judge = replace(judge, fraction=0.19) if hasattr(judge, "fraction") else replace(judge, fractions=(0.01, 0.19))
        assert judge.evaluate(model, batch, attribution_for(batch))[name].tolist() == [0, 0]


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
@pytest.mark.parametrize("name", FAITHFULNESS)
def test_padding_does_not_matter(name, family):
    model = model_of(family)
    examples = families.examples(family)
    together = model.encode(examples)
    attribution, target = attribution_for(together), model.predict(together)
    got = metric(name).evaluate(model, together, attribution, target)[name]
    for row, example in enumerate(examples):
        alone = model.encode([example])
        own = attribution[row][together.attended[row]][None]
        value = metric(name).evaluate(model, alone, own, target[row : row + 1])[name]
        assert float(value) == pytest.approx(float(got[row]), abs=2e-3 if "normalized" in name else 1e-5)


def test_equal_scores_are_judged_by_position_and_one_token_texts_have_values():
    model = model_of("bert")
    batch = model.encode([families.SENTENCES[0], "river"])
    flat = batch.content.float()
    falling = flat * torch.linspace(2, 1, batch.length)
    for name in FAITHFULNESS:
        value = metric(name).evaluate(model, batch, flat)[name]
        assert value.isfinite().all()
        assert torch.equal(value, metric(name).evaluate(model, batch, falling)[name])


def test_the_curve_s_mean_is_the_value():
    model = model_of("gpt2")
    batch = model.encode(families.examples("gpt2"))
    attribution = attribution_for(batch)
    judge = metric("aopc_comprehensiveness")
    curve = judge.evaluate_fractions(model, batch, attribution)
    assert list(curve) == [0.01, 0.05, 0.1, 0.2, 0.5]
    value = judge.evaluate(model, batch, attribution)["aopc_comprehensiveness"]
    assert torch.allclose(torch.stack(list(curve.values())).mean(0), value)
    one = metric("comprehensiveness").evaluate(model, batch, attribution)["comprehensiveness"]
    assert torch.allclose(curve[0.2], one, atol=1e-6)
    assert metric("important_tokens").evaluate_fractions(model, batch, attribution) == {}


def test_regressions_are_judged_by_their_value_and_have_no_log_odds():
    model = model_of("bert", num_labels=1)
    batch = model.encode(families.examples("bert"))
    attribution, target = attribution_for(batch), model.predict(batch)
    got = metric("comprehensiveness").evaluate(model, batch, attribution)["comprehensiveness"]
    for row in range(len(batch)):
        answer = OneByOne(model, batch, row, target, "remove")
        first = top(attribution[row].tolist(), answer.content, 0.2, "ceil", 0)
        assert float(got[row]) == pytest.approx(answer(()) - answer(first), abs=1e-5)
    assert [name for name in FAITHFULNESS if not metric(name).supports(model)] == ["log_odds"]
    with pytest.raises(ExpoundError, match="a regression has none"):
        metric("log_odds").evaluate(model, batch, attribution)


@pytest.mark.parametrize(
    ("name", "perturbation", "rounding", "bins"),
    [
        ("sufficiency", "remove", "floor", 1),
        ("log_odds", "mask", "floor", 1),
        ("aopc_comprehensiveness", "remove", "floor", 6),
    ],
)
def test_aml_s_figures_delete_for_sufficiency_and_replace_for_log_odds(name, perturbation, rounding, bins):
    model = model_of("bert")
    batch = model.encode(families.examples("bert"))
    attribution, target = attribution_for(batch), model.predict(batch)
    (judge,) = (judge for judge in preset("aml") if judge.name == name)
    got = judge.evaluate(model, batch, attribution, target)[name]
    for row in range(len(batch)):
        answer = OneByOne(model, batch, row, target, perturbation)
        budgets = (0.2,) if bins == 1 else (0.01, 0.05, 0.1, 0.2, 0.5)
        values = reference(name, answer, attribution[row].tolist(), budgets, rounding)
        assert float(got[row]) == pytest.approx(sum(values) / bins, abs=1e-5)


def test_metrics_share_perturbed_inputs():
    model = model_of("bert")
    batch = model.encode(families.examples("bert"))
    attribution, target = attribution_for(batch), model.predict(batch)
    calls = []
    hook = model.model.register_forward_pre_hook(lambda module, args, kwargs: calls.append(1), with_kwargs=True)
    try:
        with model.cache_perturbed():
            metric("aopc_comprehensiveness_minus_sufficiency").evaluate(model, batch, attribution, target)
            asked = len(calls)
            for name in ("comprehensiveness", "sufficiency", "comprehensiveness_minus_sufficiency"):
                metric(name).evaluate(model, batch, attribution, target)
            rerun = len(calls) - asked
    finally:
        hook.remove()
    assert asked > 0
    assert rerun <= 1  # the whole input, which a difference does not ask for


def test_undefined_examples_are_nan_and_the_others_are_not():
    model = model_of("bert")
    batch = model.encode(families.examples("bert"))
    attribution = attribution_for(batch)
    attribution[1, 2] = torch.nan
    batch.content[2] = False
    target = model.predict(batch)
    for name in (*FAITHFULNESS, "important_tokens"):
        value = metric(name).evaluate(model, batch, attribution, target)[name]
        assert value.isnan().tolist() == [False, True, True, False, False]
        assert value.dtype == torch.float32


def test_a_span_outside_the_input_is_undefined():
    model = model_of("bert", "QuestionAnswering")
    batch = model.encode(inputs_of("bert", "QuestionAnswering"))
    target = torch.tensor([[-1, -1], [6, 7]])
    value = metric("comprehensiveness").evaluate(model, batch, attribution_for(batch), target)["comprehensiveness"]
    assert value.isnan().tolist() == [True, False]


def test_an_attribution_of_another_shape_is_refused():
    model = model_of("bert")
    batch = model.encode(families.examples("bert"))
    with pytest.raises(ExpoundError, match="a score for each position"):
        metric("sufficiency").evaluate(model, batch, torch.zeros(len(batch), 3))


def test_half_precision_attributions_and_ids_made_elsewhere_are_judged():
    model = model_of("bert")
    batch = Batch.from_ids(torch.tensor([[2, 40, 50, 60, 3]]))
    exact = torch.tensor([[0.0, 2.0, 1.0, 3.0, 0.0]])
    full = metric("comprehensiveness").evaluate(model, batch, exact)["comprehensiveness"]
    half = metric("comprehensiveness").evaluate(model, batch, exact.bfloat16())["comprehensiveness"]
    assert torch.equal(full, half)
