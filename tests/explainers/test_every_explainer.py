"""Requirements on every registered explainer: padding, cost, shapes, zeros outside content."""

import functools
import re

import pytest
import torch

from expound import Batch, ExpoundError, attribute, explainer, list_methods
from expound.explainers import EXPLAINERS
from expound.explainers.units import number_units
from expound.models import Capture
from families import FAMILIES as RECORDS
from families import rotate, sweep_others
from small import FAMILIES, NATIVE, PAIRS, SPAN_FAMILIES, alone, make_explainer, shared, small, uneven

VARIANTS = [
    *NATIVE,
    "saliency?norm=mean_absolute",
    "attention_last?query=mean",
    "attention_all?query=mean",
    "integrated_gradients?baselines=zero&n_steps=3",
    "occlusion?unit=token",
    "occlusion?perturbation=mask",
    "occlusion?perturbation=zero",
]

UNSIGNED = [name for name in NATIVE if not EXPLAINERS[name].card.signed and name != "random"]


def check_padding(method, model, batch, tolerance):
    scores = make_explainer(method).attribute(model, batch).detach()
    assert scores.shape == batch.content.shape
    assert scores.isfinite().all()
    assert scores[~batch.content].abs().sum() == 0
    assert (scores[batch.content] != 0).any()
    if method in UNSIGNED:
        assert (scores >= 0).all()
    for row in range(len(batch)):
        own, columns = alone(model, batch, row)
        single = make_explainer(method).attribute(model, own).detach()[0]
        torch.testing.assert_close(scores[row, columns], single, rtol=tolerance, atol=tolerance)


# The contract of every explainer asks the same of a BERT.
@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("family", sweep_others(name for name in FAMILIES if name != "bert"))
@torch.no_grad()
def test_padding_changes_no_score(family, method):
    model = shared(family)
    check_padding(
        method, model, model.encode(uneven(family, 3)), 1e-7 if RECORDS[family].in_float32 == "rotations" else 1e-10
    )


@pytest.mark.parametrize("method", NATIVE)
@pytest.mark.parametrize("family", sweep_others(["roberta", "gpt2", "mistral"], usual=()))
def test_padding_changes_no_score_in_single_precision(family, method):
    model = shared(family, dtype=torch.float32)
    check_padding(method, model, model.encode(uneven(family, 3)), 1e-5)


@pytest.mark.parametrize(("method", "family"), rotate(NATIVE, SPAN_FAMILIES))
@torch.no_grad()
def test_padding_changes_no_score_of_spans(family, method):
    model = shared(family, "QuestionAnswering")
    batch = model.encode(PAIRS)
    target = model.predict(batch)
    scores = make_explainer(method).attribute(model, batch, target)
    for row in range(len(batch)):
        own, columns = alone(model, batch, row)
        single = make_explainer(method).attribute(model, own, target[row : row + 1] - columns.start)[0]
        torch.testing.assert_close(scores[row, columns], single, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", NATIVE)
@torch.no_grad()
def test_padding_on_the_right_of_a_decoder(method):
    model = shared("gpt2")
    ids = torch.randint(5, 200, (3, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(8) < torch.tensor([8, 5, 2])[:, None]
    check_padding(method, model, Batch.from_ids(ids, mask), 1e-10)


def test_a_batch_without_any_content_has_scores_of_zero():
    for method in [*NATIVE, "sequential_integrated_gradients?n_steps=3"]:
        model = shared("bert")
        batch = Batch.from_ids(torch.randint(5, 200, (2, 6)), content=torch.zeros(2, 6))
        assert not make_explainer(method).attribute(model, batch).any()


def test_inference_mode_is_answered_or_refused_by_name():
    for method in NATIVE:
        model, batch = shared("bert"), shared("bert").encode(uneven("bert", 2))
        with torch.inference_mode():
            if make_explainer(method).passes(1)[1]:
                with pytest.raises(ExpoundError, match="inference_mode"):
                    make_explainer(method).attribute(model, batch)
            else:
                assert make_explainer(method).attribute(model, batch).isfinite().all()


@functools.cache
def other_head(head):
    """A model with another head or type, for tests that do not change it."""
    if head == "bfloat16":
        return small("bert", dtype=torch.bfloat16)
    if head == "mean pooling":
        return small("modernbert", classifier_pooling="mean")
    changes = {"regression": {"num_labels": 1}, "multi_label": {"problem_type": "multi_label_classification"}}
    return small("bert", **changes[head])


@pytest.mark.parametrize(("method", "head"), rotate(NATIVE, ["regression", "multi_label", "bfloat16", "mean pooling"]))
def test_every_method_explains_other_heads_and_dtypes(head, method):
    model = other_head(head)
    family = "modernbert" if head == "mean pooling" else "bert"
    if head == "bfloat16" and method == "solvex":  # answers so coarse tie, and ties fall as the batch is padded
        batch = model.encode(uneven(family, 3))
        for scores, unit in zip(
            make_explainer(method).attribute(model, batch).float(), number_units(batch, "word"), strict=True
        ):
            words = torch.zeros(unit.max() + 1).index_add(0, unit[unit >= 0], scores[unit >= 0])
            torch.testing.assert_close(words.sort().values.diff(), torch.ones(len(words) - 1))
        return
    check_padding(method, model, model.encode(uneven(family, 3)), 0.1 if head == "bfloat16" else 1e-7)


def count_passes(model, call):
    """The forward and backward passes of a call, summed over examples, and the result of the call."""
    passes = {"forward": 0, "backward": 0}

    def forward(_, args, output):
        passes["forward"] += len(output.logits)
        if output.logits.requires_grad:
            output.logits.register_hook(lambda slope: passes.update(backward=passes["backward"] + len(slope)))

    hook = model.model.register_forward_hook(forward)
    result = call()
    hook.remove()
    return passes["forward"], passes["backward"], result


@pytest.mark.parametrize(("method", "family"), rotate(VARIANTS, ["bert", "gpt2", "vit"]))
@torch.no_grad()
def test_passes_run_are_at_most_those_announced(family, method):
    model = shared(family)
    batch = model.encode(uneven(family, 3))
    target = torch.tensor([0, 1, 2])
    lengths = batch.content.sum(1).tolist()
    single = make_explainer(method)
    single.attribute(model, batch, target)  # a model is checked once, in passes of its own
    forward, backward, _ = count_passes(model, lambda: single.attribute(model, batch, target))
    bounds = [single.passes(length) for length in lengths]
    assert forward <= sum(bound[0] for bound in bounds)
    assert backward <= sum(bound[1] for bound in bounds)
    if EXPLAINERS[method.partition("?")[0]].card.family not in ("perturbation", "search") and method != "value_zeroing":
        assert (forward, backward) == (sum(b[0] for b in bounds), sum(b[1] for b in bounds))
    elif method == "occlusion?unit=token":
        assert forward >= 0.5 * sum(bound[0] for bound in bounds), "most deletions differ"
    assert count_passes(model, lambda: single.attribute(model, batch))[0] <= forward + len(batch)


@pytest.mark.parametrize("method", NATIVE)
@pytest.mark.parametrize("family", sweep_others(["bert", "gpt2"], ["gpt2"]))
@torch.no_grad()
def test_the_prediction_is_read_from_the_methods_own_pass(family, method):
    model = shared(family)
    texts = uneven(family, 3)
    single = make_explainer(method)
    attribute(model, texts, single, [0, 1, 2], batch_size=3)  # a model is checked once, in passes of its own
    own = count_passes(model, lambda: single.attribute(model, model.encode(texts), torch.tensor([0, 1, 2])))[:2]
    forward, backward, result = count_passes(model, lambda: attribute(model, texts, single, [0, 1, 2], batch_size=3))
    assert (forward, backward) == (own[0] + (0 if single.returns_logits else len(texts)), own[1])
    lengths = [len(item.content_scores) for item in result]
    exact = EXPLAINERS[method].card.family in ("gradients", "attention", "decomposition") and method != "value_zeroing"
    assert not exact or own == tuple(sum(single.passes(length)[i] for length in lengths) for i in (0, 1))
    chances = model.probabilities(model.encode(texts))
    for item, chance in zip(result, chances, strict=True):
        assert item.prediction.value == chance.argmax()
        assert item.target.probability == pytest.approx(float(chance[item.target.value]), rel=1e-6)


def passes_on_the_card(method, length):
    """Forward and backward passes by a card's formula, for an example whose words have one token each."""
    single = explainer(method)
    formula = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", single.card.cost.replace("^", "**").replace("²", "**2"))
    names = single.params | {"words": length, "tokens": length, "min": min}
    return tuple(float(eval(formula, {}, names | dict(zip("FB", one, strict=True)))) for one in ((1, 0), (0, 1)))


def test_cost_on_the_card_equals_the_number_of_passes():
    exact = [name for name in NATIVE if EXPLAINERS[name].card.cost[0] not in "≈≤"]
    assert exact
    for method in exact:
        for length in (3, 12):
            assert passes_on_the_card(method, length) == explainer(method).passes(length), (method, length)


def test_a_card_says_what_a_score_is():
    cases = [
        ("occlusion", ("classification",), "drop in probability when removed"),
        ("occlusion", ("generation",), "drop in log-probability when removed"),
        ("occlusion", ("classification", "log_prob"), "drop in log-probability when removed"),
        ("gim", ("regression",), "part of the value"),
        ("context_cite", ("classification",), "weight in a linear model of the log-odds"),
        ("context_cite", ("classification", "prob"), "weight in a linear model of the probability"),
    ]
    for name, asked, said in cases:
        card = EXPLAINERS[name].card
        assert card.describe_scores(*asked) == said
        assert card.describe_scores(*asked, signed=False) == f"size of the {said}"


def test_cards_and_registry_agree():
    table = list_methods().set_index("name")
    assert set(EXPLAINERS) <= set(table.index)
    for name, kind in EXPLAINERS.items():
        assert bool(kind.card.unit) == (name != "citation")  # those of the method that was trained
        if kind.card.learned:
            continue
        single = kind()
        assert (single.name, kind.card.name) == (name, name)
        assert single.differentiable == table.loc[name, "differentiable"]
        assert single.signed == table.loc[name, "signed"]
        assert explainer(name) == single
        forward, backward = single.passes(10)
        assert (backward > 0) == ("B" in kind.card.cost)
        assert (forward > 0) == ("F" in kind.card.cost)


@torch.no_grad()
def test_attention_from_the_readout_by_hand():
    for family, position in (("bert", 0), ("gpt2", -1)):
        model = shared(family)
        batch = model.encode(uneven(family)[:1])
        layers = [layer[0].mean(0) for layer in model(batch, capture=Capture(attentions=True)).attentions]
        content, unit = batch.content[0], torch.eye(batch.length, dtype=torch.float64)
        rolled = unit
        for layer in layers:
            mixture = (layer + unit) / 2
            rolled = (mixture / mixture.sum(-1, keepdim=True)) @ rolled
        expected = {
            "attention_last": layers[-1][position],
            "attention_all": torch.stack(layers).mean(0)[position],
            "attention_rollout": rolled[position],
            "attention_last?query=mean": layers[-1].mean(0),
        }
        for method, row in expected.items():
            scores = explainer(method).attribute(model, batch)[0]
            torch.testing.assert_close(scores, row * content, rtol=1e-10, atol=1e-12)


def test_scaled_attention_by_hand():
    model = shared("bert")
    batch = model.encode(uneven("bert")[:1])
    last = model(batch, capture=explainer("attention_last").capture)
    (slope,) = torch.autograd.grad(last.logits[0, 2], last.attentions[-1])
    expected = last.attentions[-1][0].mean(0)[0] * slope[0].mean(0)[0] * batch.content[0]
    torch.testing.assert_close(explainer("scaled_attention").attribute(model, batch, 2)[0], expected)


def test_unknown_names_and_parameters_are_refused():
    cases = [
        ("salience", {}, "Did you mean 'saliency'"),
        ("saliency", {"norn": "l2"}, "Did you mean 'norm'"),
        ("saliency?norm=l3", {}, "l2, mean_absolute"),
        ("attention_last?query=first", {}, "mean, readout"),
        ("attention_rollout", {"query": "mean"}, "takes no parameter"),
        ("saliency:somewhere", {}, "takes no path"),
        ("integrated_gradients?n_steps=0", {}, "at least 1"),
        ("integrated_gradients?n_steps=1&rule=riemann_trapezoid", {}, "at least 2"),
        ("integrated_gradients?rule=simpson", {}, "gausslegendre"),
        ("integrated_gradients?internal_batch_size=0", {}, "at least 1"),
        ("random?seed=-1", {}, "seed"),
        (EXPLAINERS["saliency"](), {"norm": "l2"}, "made already"),
    ]
    for spec, params, message in cases:
        with pytest.raises(ExpoundError, match=message):
            explainer(spec, **params)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("integrated_gradients?baselines=blank", "mask, pad, zero"),
        ("occlusion?unit=page", "paragraph, sentence, source, thought, token, tool_result, word"),
        ("occlusion?perturbation=delete", "mask, pad, remove, zero"),
    ],
)
def test_wrong_parameters_that_the_model_has_to_understand(spec, message):
    model = shared("bert")
    with pytest.raises(ExpoundError, match=message):
        explainer(spec).attribute(model, model.encode(["a film"]))
