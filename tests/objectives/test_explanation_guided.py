"""Explanation guided training: a worked reference, which tokens are masked, and a teacher without gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import captum.attr
import numpy as np
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.models import ExplainedModel
from expound.objectives import ExplanationGuidedLoss, StepContext
from expound.objectives.explanation_guided import compute_importance, select_least_important, to_distribution
from expound.testing.models import replace_layer_norms
from expound.training.loop.training_module import TrainingModule
from smooth import along_directions

SIZE = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "dtype": torch.float64}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
INTEGRATED = "integrated_gradients?n_steps=3&baselines=zero"


def model(**changes):
    return ExplainedModel(families.tiny("bert", **(SIZE | QUIET | changes)), families.tokenizer("bert"))


def make_labeled_batch(explained, count=3):
    return explained.encode([{"text": text, "label": i % 3} for i, text in enumerate(families.examples("bert", count))])


def term(explained, batch, objective):
    return TrainingModule(explained, [objective]).train()(batch, StepContext())["terms"][0]


def integrate_gradients(hugging, ids, label, aggregate):
    """Return integrated gradients of one text along a straight line from zeros, point by point."""
    nodes, weights = np.polynomial.legendre.leggauss(3)
    end = hugging.get_input_embeddings()(ids).detach()
    total = torch.zeros_like(end)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        at = (node * end).requires_grad_()
        (slope,) = torch.autograd.grad(hugging(inputs_embeds=at).logits[0, label], at)
        total += weight * slope
    parts = (total * end)[0]
    return parts.norm(dim=-1) if aggregate == "l2" else parts.mean(-1).abs()


def reference(explained, one, aggregate, direction, ratio, special_tokens):
    """Return the term of one unpadded example from transformers' own attention; the teacher is a constant."""
    hugging, ids = explained.model, one.inputs["input_ids"]
    inside = one.content[0].nonzero().flatten()
    scores = integrate_gradients(hugging, ids, int(one.labels[0]), aggregate)[inside]
    shares = scores / scores.sum()
    changed = ids.clone()
    count = max(1, math.ceil(ratio * len(inside)))
    changed[0, inside[scores.argsort()[:count]]] = explained.mask_id
    kept = torch.arange(len(ids[0])) if special_tokens else inside
    before, hugging.config._attn_implementation = hugging.config._attn_implementation, "eager"
    try:
        rows = [hugging(x, output_attentions=True).attentions[-1][0].mean(0)[0][kept] for x in (ids, changed)]
    finally:
        hugging.config._attn_implementation = before
    attended = [row / row.sum() for row in rows]
    if special_tokens:
        # the teacher's smallest probability keeps its logarithm finite
        shares = (scores.new_zeros(len(ids[0])).index_copy(0, inside, shares) + 1e-8) / (1 + len(ids[0]) * 1e-8)
    pairs = [(a, shares) if direction == "attention" else (shares, a) for a in attended]
    return sum((p * (p / q).log()).sum() for p, q in pairs)


@pytest.mark.parametrize("aggregate", ["l2", "mean"])
@pytest.mark.parametrize(
    ("direction", "special_tokens"), [("attention", False), ("teacher", False), ("attention", True)]
)
def test_value_and_gradient_are_those_of_examples_alone_with_a_constant_teacher(aggregate, direction, special_tokens):
    explained = model()
    batch = make_labeled_batch(explained)
    options = {"aggregate": aggregate, "direction": direction, "special_tokens": special_tokens}
    objective = ExplanationGuidedLoss(expound.explainer(INTEGRATED), 0.3, **options)
    found = term(explained, batch, objective)
    ones = [batch.select([row]).trim_padding()[0] for row in range(len(batch))]
    expected = [reference(explained, one, aggregate, direction, 0.3, special_tokens) for one in ones]
    expected = torch.stack(expected).mean()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    weights = [explained.embedding.weight, explained.model.bert.encoder.layer[1].attention.self.query.weight]
    for one, other in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
        assert one.any()


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks:UserWarning")
@pytest.mark.parametrize("aggregate", ["l2", "mean"])
def test_deep_lift_teaches_by_its_dimensions_as_captum_alone_gives_them(aggregate):
    explained = model()
    one = make_labeled_batch(explained, 1)
    teacher = expound.explainer("deep_lift?baselines=zero&rule=captum")
    found = compute_importance(teacher, explained, one, one.labels, aggregate)
    explained.eval()

    class Alone(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hugging = explained.model

        def forward(self, embeddings):
            return self.hugging(inputs_embeds=embeddings).logits

    at = explained.model.get_input_embeddings()(one.inputs["input_ids"]).detach().requires_grad_()
    parts = captum.attr.DeepLift(Alone()).attribute(at, torch.zeros_like(at), int(one.labels[0]))[0].detach()
    expected = parts.norm(dim=-1) if aggregate == "l2" else parts.sum(-1).abs()
    torch.testing.assert_close(found[0], expected.masked_fill(~one.content[0], 0.0), check_dtype=False)


def test_how_many_are_masked_and_which_by_enumeration():
    torch.manual_seed(0)
    for ratio in (0.0, 0.15, 0.1, 0.2, 1.0):
        for length in (1, 2, 6, 7, 20, 30, 40):
            content = torch.zeros(1, 44, dtype=torch.bool)
            content[0, torch.randperm(44)[:length]] = True
            scores = torch.randint(4, (1, 44)).float()
            lost = select_least_important(scores, content, ratio)
            exact = max(1, -(-round(100 * ratio) * length // 100))
            ranked = sorted((float(scores[0, i]), i) for i in content[0].nonzero().flatten().tolist())
            assert lost[0].nonzero().flatten().tolist() == sorted(i for _, i in ranked[:exact])


def test_nothing_but_content_is_masked_and_an_example_without_content_loses_nothing():
    assert not select_least_important(torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.bool), 0.5).any()


def test_shares_add_up_to_one_over_content_and_are_even_without_a_teacher():
    content = torch.tensor([[False, True, True, True, False], [False, True, True, False, False]])
    shares = to_distribution(torch.tensor([[9.0, 1.0, 3.0, 0.0, 9.0], [5.0, 0.0, 0.0, 0.0, 0.0]]), content)
    expected = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(shares, expected, atol=1e-7, rtol=0)
    assert (shares[content] > 0).all()


@pytest.mark.parametrize(
    "teacher",
    [
        "decompx_linear",
        "attn_lrp",
        "cp_lrp",
        "gim",
        "generic_attention",
        "input_x_gradient",
        "saliency",
        "deep_lift",
        "occlusion",
        "attention_rollout",
    ],
)
def test_any_method_teaches_without_dropout_and_without_a_graph(teacher):
    explained = model(hidden_dropout_prob=0.1).train()
    batch = make_labeled_batch(explained)
    objective = ExplanationGuidedLoss(expound.explainer(teacher))
    found = [
        compute_importance(objective.explainer, explained, batch, batch.labels, objective.aggregate_in_use)
        for _ in range(2)
    ]
    assert torch.equal(*found)
    assert not found[0].requires_grad
    assert (found[0] >= 0).all()
    assert not found[0][~batch.content].any()
    value = term(explained, batch, objective)
    assert float(value.detach()) >= 0
    value.backward()
    assert explained.training


@pytest.mark.parametrize("direction", ["attention", "teacher"])
def test_derivatives_of_first_and_second_order(direction):
    """A random teacher ignores the model, so it stays the same when the weights move."""
    explained = model(num_hidden_layers=1)
    replace_layer_norms(explained)
    objective = ExplanationGuidedLoss(expound.explainer("random"), direction=direction)
    module = TrainingModule(explained, [objective]).train()
    at = along_directions(module, make_labeled_batch(explained, 1), layers=1, value="key")
    point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(at, (point,), eps=1e-6, atol=1e-7, rtol=1e-4)
    assert torch.autograd.gradgradcheck(at, (point,), eps=1e-6, atol=1e-6, rtol=1e-3)


def test_a_regression_has_one_output_to_explain():
    explained = model(num_labels=1, problem_type="regression")
    batch = replace(explained.encode(families.examples("bert", 2)), labels=torch.tensor([0.5, -1.0]))
    assert torch.isfinite(term(explained, batch, ExplanationGuidedLoss(expound.explainer(INTEGRATED))))


def test_pictures_have_no_words():
    explained = expound.load(families.tiny("vit"), families.processor("vit"))
    batch = replace(explained.encode(families.examples("vit", 2)), labels=torch.tensor([0, 1]))
    with pytest.raises(ExpoundError, match="images"):
        term(explained, batch, ExplanationGuidedLoss(expound.explainer("saliency")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_fraction": 15.0}, "mask fraction from 0 to 1"),
        ({"aggregate": "sum"}, "unknown aggregate 'sum'"),
        ({"explainer": "occlusion", "aggregate": "l2"}, "occlusion has one score a position"),
        ({"direction": "both"}, "unknown direction 'both'"),
    ],
)
def test_bad_choices_are_named(arguments, message):
    arguments = {"explainer": INTEGRATED} | arguments
    with pytest.raises(ExpoundError, match=message):
        ExplanationGuidedLoss(expound.explainer(arguments.pop("explainer")), **arguments)
