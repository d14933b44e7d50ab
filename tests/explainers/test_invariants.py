"""What must hold of methods for any model: sums, signs, limits, names, and what they cost."""

from inspect import signature

import numpy as np
import pytest
import torch

import decomposable
from expound import Batch, ExpoundError, explainer
from expound.explainers import EXPLAINERS
from expound.explainers.attention.generic_attention import compute_relevance_maps
from expound.explainers.decomposition.flash_trace import compute_layer_shares
from expound.explainers.decomposition.information_flow import compute_feed_forward_shares, compute_shares
from expound.explainers.decomposition.maps import HeadVectors
from expound.explainers.decomposition.trace import trace_examples
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.perturbation.context_cite import ContextCite, ablation_masks, fit_lasso
from expound.models import Capture
from expound.models.layers.architecture import get_layers
from expound.training.source_attention import negative_correlation
from models.test_generation import PROMPTS, RESPONSES, generating, padded_right
from small import shared, uneven

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
FLOWS = ["bert", "gpt2", "llama", "mistral", "qwen2"]
FIXED = ("attn_lrp", "cp_lrp", "gim", "generic_attention", "information_flow", "flash_trace", "context_cite")


@pytest.mark.parametrize("alpha", [1e-10, 1e-12])
def test_without_a_penalty_the_lasso_is_least_squares(alpha):
    """More masks than units, and answers that are no sum of theirs."""
    masks = ablation_masks(48, 6)
    values = np.random.default_rng(3).normal(size=48) * 5
    weights, bias = fit_lasso(masks, values, 4, alpha)
    design = np.concatenate([masks, np.ones((48, 1))], 1)
    expected = np.linalg.lstsq(design, values, rcond=None)[0]
    np.testing.assert_allclose([*weights, bias], expected, rtol=1e-6)


def test_masks_do_not_depend_on_the_text():
    method = ContextCite(n_samples=5)
    one = method.draw_masks(torch.tensor([[0, 0, 1, 2, -1], [0, 1, 1, 2, 2]]))
    assert torch.equal(one[:, 0], one[:, 1])
    assert np.array_equal(one[:, 0].numpy(), ablation_masks(5, 3))


@torch.no_grad()
def test_shares_of_a_layer_sum_to_one_and_the_future_has_none():
    for family in FLOWS:
        model = decomposable.shared_model(family)
        for trace in trace_examples(model, decomposable.batch(model)):
            rows = torch.arange(len(trace.positions))
            for state in trace.layers:
                attention, residual = compute_shares(state, HeadVectors(state), rows)
                total = attention.sum((1, 2)) + residual
                torch.testing.assert_close(total, torch.ones_like(total), **TIGHT)
                torch.testing.assert_close(
                    compute_feed_forward_shares(state, rows).sum(0), torch.ones_like(total), **TIGHT
                )
                if model.is_decoder:
                    assert not attention.sum(1).triu(1).any()


@torch.no_grad()
def test_flash_trace_shares_sum_to_one_without_the_future():
    for family in FLOWS:
        model = decomposable.shared_model(family)
        for trace in trace_examples(model, decomposable.batch(model)):
            length = len(trace.positions)
            for sinks in (torch.eye(length)[length // 2], torch.ones(length)):
                layers_of, residual = compute_layer_shares(trace, sinks)
                torch.testing.assert_close(layers_of.sum(1) + residual, torch.ones_like(residual), **TIGHT)
            if model.is_decoder:
                assert not compute_layer_shares(trace, torch.eye(length)[length // 2])[0][:, length // 2 + 1 :].any()


@pytest.mark.parametrize("span", [(0, 2), (1, 2)])
@torch.no_grad()
def test_without_hops_a_trace_is_the_span_s_own(span):
    """The explainer traces the attention of the response alone, also in a padded batch."""
    model = generating()
    batch = model.batch(PROMPTS, RESPONSES)
    scores = explainer("flash_trace").attribute(model, batch, span)
    readout = model.readout_weights(batch, torch.tensor([span] * len(batch)))
    for row, trace in enumerate(trace_examples(model, batch)):
        shares = compute_layer_shares(trace, readout[row, trace.positions])[0].sum(0)
        expected = trace.spread(shares, batch.length).masked_fill(~batch.content[row], 0)
        torch.testing.assert_close(scores[row], expected, **TIGHT)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_attention_relevance_is_not_negative_and_of_one_scalar(family):
    """A contrast clamps the difference's own slopes: it is no difference of two relevances."""
    model = shared(family)
    batch = model.encode(uneven(family, 2))
    outputs = model(batch, model.embed(batch), Capture(attentions=True))
    score = outputs.logits[:, 0] - outputs.logits[:, 1]
    slopes = torch.autograd.grad(score.sum(), outputs.attentions, create_graph=True)
    maps = compute_relevance_maps(slopes, outputs.attentions)
    assert all((layer >= 0).all() for layer in maps)
    relevance = torch.eye(batch.length, dtype=torch.float64)
    for layer in maps:
        relevance = relevance + layer @ relevance
    readout = model.readout_weights(batch, torch.tensor([0, 0]))
    own = torch.stack(
        [(weights @ (rows - rows.diag().diag())) for weights, rows in zip(readout, relevance, strict=True)]
    )
    found, first, second = (
        explainer("generic_attention").attribute(model, batch, target).detach() for target in ((0, 1), 0, 1)
    )
    torch.testing.assert_close(found, own.detach().masked_fill(~batch.content, 0), **TIGHT)
    assert (found - (first - second)).abs().max() > 1e-6


def test_uniform_coefficients_are_the_mean_of_all_heads():
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    scores = AttentionToSource.for_model(model).double().attribute(model, batch).detach()
    expected = explainer("attention_all").attribute(model, batch).detach()
    torch.testing.assert_close(scores, expected, **TIGHT)


def test_a_constant_head_learns_nothing():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 16, 5, generator=generator).double()
    inputs[..., 2] = 0.7
    weights = torch.ones(5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        negative_correlation(inputs @ weights, inputs[..., 0] + inputs[..., 1] ** 2), weights
    )
    assert abs(slope[2]) < 1e-12
    assert (slope[[0, 1, 3, 4]].abs() > 1e-6).all()


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_ablations_cost_less_than_passes_one_at_a_time(family):
    """Tokens that enter the first layer; versions of a prompt share their beginnings."""
    if family == "bert":
        model = shared(family)
        batch = model.encode(
            ["a moving film about a small town and its river , and nobody laughs at the old jokes " * 3]
        )
    else:
        model = generating()
        batch = model.batch(list(range(5, 69)), [7, 8, 9, 10], unit_of=torch.arange(64) // 8)
    tokens = []
    hook = get_layers(model.model)[0].register_forward_hook(
        lambda _, inputs, output: tokens.append((output if torch.is_tensor(output) else output[0]).shape[:2].numel())
    )
    explainer("context_cite").attribute(model, batch)
    hook.remove()
    assert sum(tokens) <= 0.6 * 64 * int(batch.attended.sum())


def test_ids_of_methods_and_what_they_are_called_with():
    for name in (*FIXED, "attention_to_source", "reagent", "spex"):
        assert name in EXPLAINERS
    assert {"baseline_id", "temperature"} <= set(signature(EXPLAINERS["gim"]).parameters)
    assert explainer("gim").temperature == 2
    for name in ("attn_lrp", "cp_lrp", "gim", "generic_attention", "decompx_linear", "saliency", "input_x_gradient"):
        for output in ("log_prob", "logit", "prob"):
            assert explainer(name, output=output).output == output


@pytest.mark.parametrize("name", [name for name, kind in EXPLAINERS.items() if kind.card.family == "gradients"])
def test_gradient_like_methods_choose_how_dimensions_are_taken_together(name):
    # Sums of gradients are zero behind BERT's LayerNorm, unlike behind an RMSNorm.
    family = "llama" if name in ("saliency", "smooth_grad") else "bert"
    model = shared(family)
    batch = model.encode(uneven(family, 2))
    few = {key: 3 for key in ("n_steps", "n_samples") if key in explainer(name).params}
    total, magnitudes, norm = (
        explainer(name, aggregate=perturbation, **few).attribute(model, batch, [0, 1]).detach()
        for perturbation in ("sum", "abs", "l2")
    )
    assert (total.abs() <= magnitudes + 1e-12).all()
    assert (norm <= magnitudes + 1e-12).all()
    assert (total < 0).any()
    assert explainer(name, aggregate="sum", **few).signed


def test_norms_of_a_gradient_are_those_of_its_dimensions():
    model = shared("llama")
    batch = model.encode(uneven("llama", 2))
    embeddings = model.embed(batch).detach().requires_grad_()
    score = model(batch, embeddings).logits[:, 0].sum()
    (slope,) = torch.autograd.grad(score, embeddings)
    for perturbation, expected in (("sum", slope.sum(-1)), ("abs", slope.abs().sum(-1)), ("l2", slope.norm(dim=-1))):
        scores = explainer("saliency", aggregate=perturbation).attribute(model, batch, 0).detach()
        torch.testing.assert_close(scores, expected.masked_fill(~batch.content, 0), **TIGHT)
    assert explainer("saliency").params == {"output": None, "norm": "l2"}
    with pytest.raises(ExpoundError, match="Valid choices: abs, l2, sum"):
        explainer("saliency?aggregate=max")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
@pytest.mark.parametrize("method", ["saliency", "smooth_grad?n_samples=2"])
def test_sums_of_gradients_behind_a_layer_norm_are_refused(method, family, dtype):
    model = shared(family, dtype=dtype)
    batch = model.encode(uneven(family, 2))
    with pytest.raises(ExpoundError, match="zero but for rounding where a LayerNorm"):
        explainer(f"{method}{'&' if '?' in method else '?'}aggregate=sum").attribute(model, batch, [0, 1])


@pytest.mark.parametrize("output", ["log_prob", "logit", "prob"])
@pytest.mark.parametrize("name", ["attn_lrp", "gim", "generic_attention"])
@torch.no_grad()
def test_batches_from_ids_and_from_prompts_with_responses(name, output):
    """Targets are spans of response tokens, scores [B, L]."""
    model = generating("qwen2")
    method = explainer(name, output=output, **({"baseline_id": 3} if name == "gim" else {}))
    batch = model.batch(PROMPTS, RESPONSES)
    together = method.attribute(model, batch, target=(0, 2))
    assert together.shape == batch.attended.shape
    from_ids = padded_right(PROMPTS, RESPONSES)
    same = method.attribute(model, from_ids, target=(0, 2))
    for row in range(len(PROMPTS)):
        torch.testing.assert_close(
            same[row, from_ids.content[row]], together[row, batch.content[row]], rtol=1e-7, atol=1e-9
        )
    classifier = shared("bert")
    ids = torch.tensor([[2, 9, 8, 7, 3]])
    assert method.attribute(classifier, Batch.from_ids(ids), [1]).shape == (1, 5)


@pytest.mark.parametrize("name", ["attn_lrp", "cp_lrp", "gim", "decompx_linear", "input_x_gradient"])
@torch.no_grad()
def test_swapping_a_contrast_turns_every_sign(name):
    model = generating("llama")
    one, other, none = (
        explainer(name).attribute(model, model.batch(PROMPTS[0], [first], foil_ids=[second]), 0)
        for first, second in ((50, 99), (99, 50), (50, 50))
    )
    torch.testing.assert_close(one, -other, **TIGHT)
    assert one.any()
    assert not none.any()
