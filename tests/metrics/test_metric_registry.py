from __future__ import annotations

import pytest
import torch

import families
from expound.cli import main
from expound.errors import ExpoundError
from expound.metrics import METRICS, PRESETS, cards, metric, preset
from judged import attribution_for, model_of


# The contract of every metric asks a BERT.
@pytest.mark.parametrize(("name", "family"), families.rotate(METRICS, ["gpt2", "vit"]))
def test_smoke_every_metric_on_every_kind_of_model(family, name):
    model = model_of(family)
    batch = model.encode(families.examples(family))
    card, judge = cards()[name], metric(name)
    if not judge.supports(model):
        with pytest.raises(ExpoundError):
            judge.evaluate(model, batch, attribution_for(batch))
        return
    values = judge.evaluate(model, batch, attribution_for(batch))
    assert list(values) == [card.name] == [name]
    assert values[name].shape == (len(batch),)
    low, high = card.bounds
    known = values[name][values[name].isfinite()]
    assert low is None or (known >= low).all()
    assert high is None or (known <= high).all()
    assert known.numel() == (0 if card.needs_rationale else len(batch))


def test_a_spec_is_the_same_as_its_parameters():
    cases = [
        ("aopc_comprehensiveness", {}),
        (
            "aopc_comprehensiveness?fractions=0.1,0.2&perturbation=mask&divisor=fractions_plus_one",
            {"fractions": (0.1, 0.2), "perturbation": "mask", "divisor": "fractions_plus_one"},
        ),
        ("log_odds?fraction=0.1&rounding=floor", {"fraction": 0.1, "rounding": "floor"}),
        ("token_f1?k=none", {"k": None}),
        ("token_f1?k=25&unit=token&special_tokens=true", {"k": 25, "unit": "token", "special_tokens": True}),
    ]
    for spec, params in cases:
        name = spec.split("?")[0]
        assert metric(spec) == METRICS[name](**params) == metric(name, **params)
        assert metric(name, **metric(spec).params) == metric(spec)


def test_keywords_come_on_top_of_the_spec():
    assert metric("sufficiency?fraction=0.1&perturbation=pad", fraction=0.5).params == {
        "perturbation": "pad",
        "rounding": "ceil",
        "keep_question": False,
        "fraction": 0.5,
    }


def test_wrong_specs_are_refused_in_one_line():
    cases = [
        ("sufficency", "Did you mean 'sufficiency'"),
        (
            "sufficiency?budget=0.1",
            "unknown parameter of sufficiency 'budget'. Valid choices: fraction, keep_question, perturbation, rounding",
        ),
        ("sufficiency?perturbation=delete", "sufficiency: perturbation 'delete'.*mask, pad, remove, zero"),
        ("sufficiency?fraction=many", "sufficiency: fraction: expected float, got 'many'"),
        ("sufficiency?fraction", "fraction: expected float, got 'true'"),
        ("sufficiency?fraction=2", "above 0 and up to 1"),
        (
            "rationale_auc?special_tokens=perhaps",
            "rationale_auc: special_tokens: expected true or false, got 'perhaps'",
        ),
        ("aopc_sufficiency?fractions=", "expected float"),
    ]
    for spec, message in cases:
        with pytest.raises(ExpoundError, match=message) as error:
            metric(spec)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("sufficiency", {"perturbation": "delete"}),
        ("sufficiency", {"rounding": "half"}),
        ("aopc_sufficiency", {"divisor": "two"}),
        ("rationale_auc", {"unit": "page"}),
    ],
)
def test_wrong_values_from_python_are_refused(name, params):
    with pytest.raises(ExpoundError, match="Valid choices"):
        metric(name, **params)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_metrics_with_their_parameters(name):
    model = model_of("bert")
    batch = model.encode(
        [{"text": families.SENTENCES[0], "rationale": [[2, 8]]}, {"text": "a river", "rationale": None}]
    )
    metrics = preset(name)
    assert [judge.name for judge in metrics] == list(PRESETS[name])
    for judge in metrics:
        assert judge.params.items() >= PRESETS[name][judge.name].items()
        assert judge.evaluate(model, batch, attribution_for(batch))[judge.name][0].isfinite()


def test_unknown_presets_are_refused():
    with pytest.raises(ExpoundError, match=r"unknown preset 'ivr'\. Did you mean 'ivra'"):
        preset("ivr")


def test_metrics_are_values_that_cannot_be_changed():
    one = metric("aopc_comprehensiveness")
    assert one == metric("aopc_comprehensiveness")
    assert hash(one) == hash(metric("aopc_comprehensiveness"))
    assert one != metric("aopc_sufficiency")
    with pytest.raises(AttributeError):
        one.perturbation = "mask"


def test_evaluation_leaves_no_graph_and_no_cache():
    model = model_of("bert")
    batch = model.encode(families.examples("bert"))
    attribution = attribution_for(batch).requires_grad_()
    value = metric("comprehensiveness").evaluate(model, batch, attribution)["comprehensiveness"]
    assert not value.requires_grad
    assert model.perturbation_cache is None
    assert torch.equal(attribution, attribution_for(batch))


def test_cards_format_their_bounds(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["metrics"]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if line.split()}
    assert "None" not in shown
    assert " 0 … 1 " in lines["rationale_auc"]
    assert " 1 … ∞ " in lines["needle_rank"]
    assert " −∞ … ∞ " in lines["topk_drop"]
    assert " -27.6 … 27.6 " in lines["log_odds"]
