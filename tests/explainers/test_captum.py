"""Agreement with captum, on the real model and on tiny ones, through its own way of running a model."""

import captum.attr
import pytest
import torch

from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.gradients.integrated_gradients import quadrature
from small import small, uneven

TEXTS = ["a moving film about naïve jokes", "It's simply dull, and long."]


def make_forward(model, batch):
    """The model as captum calls it: from input embeddings to logits, with all else as in the batch."""
    fixed = {name: value for name, value in batch.inputs.items() if name != "input_ids"}

    def logits(embeddings):
        copies = len(embeddings) // len(batch)
        return model.model(inputs_embeds=embeddings, **{k: v.repeat(copies, 1) for k, v in fixed.items()}).logits

    return logits


def assert_scores_close(scores, theirs, batch, tolerance):
    expected = theirs.sum(-1).masked_fill(~batch.content, 0).to(scores.dtype)
    torch.testing.assert_close(scores.detach(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def sentences(minilm):
    return minilm.encode(TEXTS)


@pytest.mark.real
@pytest.mark.parametrize("baselines", ["mask", "zero"])
def test_integrated_gradients_on_a_real_model(minilm, sentences, baselines):
    ids = sentences.inputs["input_ids"]
    table = minilm.model.get_input_embeddings()
    with torch.no_grad():
        token = {"mask": minilm.tokenizer.mask_token_id, "pad": minilm.tokenizer.pad_token_id}.get(baselines)
        start = torch.zeros_like(table(ids)) if token is None else table(ids.masked_fill(sentences.content, token))
        target = minilm.predict(sentences)
        end = table(ids)
    theirs, delta = captum.attr.IntegratedGradients(make_forward(minilm, sentences)).attribute(
        end, start, target, n_steps=50, method="gausslegendre", return_convergence_delta=True, internal_batch_size=40
    )
    with torch.no_grad():
        ours = explainer("integrated_gradients", baselines=baselines).explain(minilm, sentences)
        ends = [minilm.task.score(minilm(sentences, at).logits, target) for at in (end, start)]
    assert_scores_close(ours.scores, theirs, sentences, 1e-5)
    if baselines == "mask":
        change = ends[0] - ends[1]
        torch.testing.assert_close(ours.scores.sum(1) - ours.convergence_delta, change, rtol=1e-4, atol=1e-4)
        assert (ours.convergence_delta.abs() < 0.01 * change.abs()).all(), "scores add up to the change of the logit"
    torch.testing.assert_close(ours.convergence_delta, delta.to(torch.float32), rtol=1e-3, atol=2e-5)


@pytest.mark.real
def test_input_times_gradient_on_a_real_model(minilm, sentences):
    end = minilm.embed(sentences).detach().requires_grad_()
    theirs = captum.attr.InputXGradient(make_forward(minilm, sentences)).attribute(
        end, target=minilm.predict(sentences)
    )
    assert_scores_close(explainer("input_x_gradient").attribute(minilm, sentences), theirs, sentences, 1e-5)


@pytest.mark.parametrize("family", ["bert", "albert", "electra", "distilbert", "modernbert", "deberta-v2", "big_bird"])
@pytest.mark.parametrize("rule", ["gausslegendre", "riemann_middle", "riemann_trapezoid"])
def test_quadrature_rules_equal_captum_on_tiny_models(family, rule):
    model = small(family)
    batch = model.encode(uneven(family))
    target = torch.tensor([0, 1, 2, 0])
    with model.evaluation_mode():
        theirs = captum.attr.IntegratedGradients(make_forward(model, batch)).attribute(
            model.embed(batch).detach(), model.embed_reference(batch).detach(), target, n_steps=8, method=rule
        )
    # captum's n points of the trapezoid rule weigh 1/n, the ends half of that, so that the weights sum to (n - 1)/n.
    captum_weights = 7 / 8 if rule == "riemann_trapezoid" else 1
    ours = explainer("integrated_gradients", n_steps=8, rule=rule).attribute(model, batch, target)
    assert_scores_close(ours, theirs / captum_weights, batch, 1e-7)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_baselines_can_be_the_tokens_of_a_reference_text(family):
    model = small(family)
    batch = model.encode(uneven(family)[:1])
    length, target = int(batch.attended.sum()), torch.tensor([1])
    ids = tuple(range(5, 5 + length))
    with model.evaluation_mode():
        theirs = captum.attr.IntegratedGradients(make_forward(model, batch)).attribute(
            model.embed(batch).detach(), model.embedding(torch.tensor([ids])).detach(), target, n_steps=8
        )
    ours = explainer("integrated_gradients", n_steps=8, baselines=ids).attribute(model, batch, target)
    assert_scores_close(ours, theirs, batch, 1e-7)
    same = tuple(batch.inputs["input_ids"][0].tolist())
    for name in ("integrated_gradients", "deep_lift", "sequential_integrated_gradients"):
        assert explainer(name, baselines=same).attribute(model, batch, target).abs().max() < 1e-12
        spelt = f"{name}?baselines={','.join(map(str, same))}"
        assert explainer(spelt) == explainer(name, baselines=same)
    with pytest.raises(ExpoundError, match=f"as many baseline ids as the example has tokens, {length}, got 2"):
        explainer("integrated_gradients", baselines=(5, 6)).attribute(model, batch, target)
    with pytest.raises(ExpoundError, match="baseline ids from 0"):
        explainer("integrated_gradients", baselines=(10**6,) * length).attribute(model, batch, target)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "vit"])
def test_every_quadrature_rule_is_complete(family):
    model = small(family)
    batch = model.encode(uneven(family, 2))
    with torch.no_grad():
        target = model.predict(batch)
        change = model(batch).logits - model(batch, model.embed_reference(batch)).logits
        change = model.task.score(change, target)
        for rule, steps in {"gausslegendre": 30, "riemann_middle": 100, "riemann_trapezoid": 100}.items():
            explained = explainer("integrated_gradients", n_steps=steps, rule=rule).explain(model, batch)
            tolerance = 1e-5 if rule == "gausslegendre" else 2e-2
            torch.testing.assert_close(explained.scores.sum(1), change, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(
                explained.convergence_delta, explained.scores.sum(1) - change, rtol=1e-6, atol=1e-8
            )


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_internal_batches_change_nothing(size):
    model = small("roberta")
    batch = model.encode(uneven("roberta"))
    with torch.no_grad():
        ours = explainer("integrated_gradients", n_steps=5, internal_batch_size=size).attribute(model, batch)
        usual = explainer("integrated_gradients", n_steps=5).attribute(model, batch)
    torch.testing.assert_close(ours, usual, rtol=1e-10, atol=1e-10)


def test_quadrature_is_exact_for_polynomials():
    for rule, degree in [("gausslegendre", 3), ("riemann_middle", 1), ("riemann_trapezoid", 1)]:
        for points in [2, 3, 10]:
            nodes, weights = quadrature(rule, points)
            assert len(nodes) == len(weights) == points
            for power in range(degree + 1):
                assert abs((weights * nodes**power).sum() - 1 / (power + 1)) < 1e-14
