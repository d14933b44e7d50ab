"""Attention times gradient: published numbers, and the whole product of matrices by hand."""

import numpy as np
import pytest
import torch

import decomposable
from expound import explainer
from expound.explainers.attention.generic_attention import compute_relevance_maps
from expound.models import Capture
from small import PAIRS, shared, small, uneven


@pytest.mark.real
@pytest.mark.parametrize("target", [0, 1, 2])
def test_published_relevance(golden, golden_generation, target):
    numbers = dict(np.load(golden_generation / "bert-tiny_generic_attention_f64.npz"))
    numbers = {name: torch.from_numpy(array) for name, array in numbers.items()}
    _, model, batch = decomposable.golden_reference(golden)
    scores = explainer("generic_attention").attribute(model, batch, [target] * 6).detach()
    outputs = model(batch, capture=Capture(attentions=True))
    slopes = torch.autograd.grad(outputs.logits[:, target].sum(), outputs.attentions)
    maps = compute_relevance_maps(slopes, outputs.attentions)
    for row, attended in enumerate(batch.attended):
        length = int(attended.sum())
        expected = numbers["scores"][row, target, :length]
        torch.testing.assert_close(scores[row, :length], expected, rtol=1e-10, atol=1e-12)
        for ours, theirs in zip(maps, numbers["layer_maps"][row, target], strict=True):
            torch.testing.assert_close(ours[row, :length, :length], theirs[:length, :length], rtol=1e-10, atol=1e-12)


def relevance_by_hand(model, batch, target):
    """The whole relevance matrix [B, L, L]."""
    outputs = model(batch, model.embed(batch), Capture(attentions=True))
    score = model.task.score(outputs.logits, target).sum()
    relevance = torch.eye(batch.length, dtype=torch.float64)
    for layer, slope in zip(outputs.attentions, torch.autograd.grad(score, outputs.attentions), strict=True):
        relevance = relevance + (slope * layer).relu().mean(1) @ relevance
    return relevance


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_answer_of_a_span_is_read_at_two_positions(family):
    model = shared(family, "QuestionAnswering")
    batch = model.encode(PAIRS)
    target = model.predict(batch)
    relevance = relevance_by_hand(model, batch, target)
    expected = torch.zeros(batch.attended.shape, dtype=torch.float64)
    for row, ends in enumerate(target.tolist()):
        for end in ends:
            own = relevance[row, end].detach().clone()
            own[end] = 0
            expected[row] += own / 2
    scores = explainer("generic_attention").attribute(model, batch, target).detach()
    torch.testing.assert_close(scores, expected.masked_fill(~batch.content, 0), rtol=1e-10, atol=1e-12)


def test_a_mean_over_all_positions_reads_every_one():
    model = small("modernbert", classifier_pooling="mean")
    batch = model.encode(uneven("modernbert", 3))
    target = torch.tensor([0, 1, 2])
    relevance = relevance_by_hand(model, batch, target)
    others = relevance * (1 - torch.eye(batch.length))
    weights = batch.attended / batch.attended.sum(1, keepdim=True)
    expected = (weights[:, None].double() @ others)[:, 0].detach()
    scores = explainer("generic_attention").attribute(model, batch, target).detach()
    torch.testing.assert_close(scores, expected.masked_fill(~batch.content, 0), rtol=1e-6, atol=1e-9)


def test_a_target_that_attention_does_not_reach_has_no_relevance():
    model = small("bert")
    with torch.no_grad():
        model.model.classifier.weight[1] = 0
    scores = explainer("generic_attention").attribute(model, model.encode(uneven("bert", 2)), [1, 1])
    assert not scores.any()
