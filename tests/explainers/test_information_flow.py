"""Information flow routes and FlashTrace: published numbers, all parts by hand, rows that sum to 1."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import decomposable
import families
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.decomposition.flash_trace import compute_layer_shares, trace_hops
from expound.explainers.decomposition.information_flow import (
    FLOOR,
    SHIFT,
    InformationFlow,
    compute_feed_forward_shares,
    compute_shares,
)
from expound.explainers.decomposition.maps import HeadVectors
from expound.explainers.decomposition.trace import trace_examples
from expound.models.generation.model import GeneratingModel
from expound.models.passes import capture

TARGET = torch.tensor([0, 1, 2])
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
SINGLE = {"rtol": 2e-5, "atol": 1e-6}  # they are computed in float32
CAUSAL = torch.ones(16, 16, dtype=torch.bool).tril()


@pytest.fixture(scope="module")
def numbers(golden_generation):
    return {
        name: torch.from_numpy(array) for name, array in np.load(golden_generation / "llama-tiny_flow_f64.npz").items()
    }


@pytest.fixture(scope="module")
def model(golden_generation):
    made = AutoModelForCausalLM.from_pretrained(golden_generation / "llama-tiny", dtype=torch.float64).eval()
    decomposable.replace_rms_norms(made)
    return GeneratingModel(made)


@pytest.fixture(scope="module")
def batch(model, numbers):
    prompt = int(numbers["prompt_length"])
    return model.batch(numbers["ids"][:prompt], numbers["ids"][prompt:])


@pytest.fixture(scope="module")
def trace(model, batch):
    with torch.no_grad():
        return next(iter(trace_examples(model, batch)))


def shares_of_past(attention, residual):
    """The published shares without those of future positions, which come from a numerical floor alone."""
    attention = attention.masked_fill(~CAUSAL[None, :, :, None], 0)
    total = attention.sum((2, 3)) + residual
    return attention / total[..., None, None], residual / total


@pytest.mark.real
@pytest.mark.parametrize(("suffix", "threshold"), [("", 0.0), ("_t003", 0.03)])
@torch.no_grad()
def test_shares_equal_published_ones(numbers, trace, suffix, threshold):
    expected = shares_of_past(numbers[f"ifr_attention{suffix}"], numbers[f"ifr_residual_attention{suffix}"])
    for number, state in enumerate(trace.layers):
        attention, residual = compute_shares(state, HeadVectors(state), torch.arange(16), threshold)
        torch.testing.assert_close(attention.transpose(1, 2), expected[0][number], **TIGHT)
        torch.testing.assert_close(residual, expected[1][number], **TIGHT)
        forward = compute_feed_forward_shares(state, torch.arange(16))
        torch.testing.assert_close(forward[0], numbers["ifr_ffn"][number], **TIGHT)
        torch.testing.assert_close(forward[1], numbers["ifr_residual_ffn"][number], **TIGHT)


@pytest.mark.real
@torch.no_grad()
def test_published_rollout_and_routes(numbers, model, batch, trace):
    attention, residual = shares_of_past(numbers["ifr_attention"], numbers["ifr_residual_attention"])
    first, second = attention.sum(-1) + torch.diag_embed(residual)
    method = InformationFlow()
    scores = method.explain(model, batch, (4, 5), special_tokens=True).scores[0]
    torch.testing.assert_close(scores, (second @ first)[14], **TIGHT)
    torch.testing.assert_close(scores, numbers["ifr_rollout"][14], rtol=2e-3, atol=2e-5)

    last = torch.zeros(16)
    last[-1] = 1
    strengths = InformationFlow(form="routes").find_routes(trace, last)
    assert torch.equal(strengths[0] > 0.03, numbers["ifr_graph_inputs_reached"])
    for number, strength in enumerate([strengths[1], last.double()]):
        edges = method.compute_map(trace.layers[number], torch.arange(16))
        edges = edges * (torch.minimum(strength[:, None], edges) > 0.03)
        torch.testing.assert_close(edges, numbers["ifr_graph_attention_edges"][number], rtol=1e-4, atol=1e-6)


@pytest.mark.real
@torch.no_grad()
def test_published_traces(numbers, trace, model, batch):
    """Sinks are the continuation's own positions, as there."""
    prompt, span = int(numbers["prompt_length"]), torch.zeros(16)
    span[13:] = 1
    for token in range(5):
        layers, _ = compute_layer_shares(trace, torch.eye(16)[prompt + token])
        torch.testing.assert_close(layers.float(), numbers["flash_tokenwise_layers"][token], **SINGLE)
    layers, residual = compute_layer_shares(trace, span)
    torch.testing.assert_close(layers.float(), numbers["flash_span_layers"], **SINGLE)
    torch.testing.assert_close(residual, numbers["flash_span_residual"], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(layers.sum(1) + residual, torch.ones(2, dtype=torch.float64), **TIGHT)
    reasoning = (torch.arange(16) >= prompt) & (torch.arange(16) < prompt + 2)
    for hops in (1, 2):
        total = trace_hops(trace, layers.sum(0), reasoning, hops, back=0)
        kept = total.float().masked_fill(torch.arange(16) >= prompt, 0)
        torch.testing.assert_close(kept, numbers[f"flash_hops{hops}_sum"], **SINGLE)
        scores = explainer("flash_trace", hops=hops, sinks="own").attribute(model, batch, (2, 5))[0]
        torch.testing.assert_close(scores.float(), numbers[f"flash_hops{hops}_sum"], **SINGLE)
    scores = explainer("flash_trace?sinks=own").explain(model, batch, (2, 5), special_tokens=True).scores[0]
    torch.testing.assert_close(scores.float(), numbers["flash_span"], **SINGLE)


@pytest.mark.parametrize("family", families.sweep_others(decomposable.FAMILIES))
@torch.no_grad()
def test_all_parts_by_hand(family):
    model = decomposable.shared_model(family)
    trace = next(iter(trace_examples(model, decomposable.batch(model))))
    rows = torch.arange(len(trace.positions))
    for state in trace.layers:
        weights, vectors = state.decompose_middle(rows)
        parts = (weights[..., None] * vectors[:, None]).transpose(0, 1)
        whole = state.middle
        near = whole.abs().sum(-1)[:, None, None] - (parts - whole[:, None, None] + SHIFT).abs().sum(-1)
        near = near.clamp(min=FLOOR) * (weights.transpose(0, 1) != 0)
        expected = (near / near.sum((1, 2), keepdim=True)).sum(2)
        torch.testing.assert_close(InformationFlow().compute_map(state, rows), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", ["bert", "gpt2", "qwen2", "vit"])
@torch.no_grad()
def test_rollouts_sum_to_one(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    for spec in ("information_flow", "information_flow?min_share=0.02"):
        scores = explainer(spec).explain(model, batch, TARGET, special_tokens=True).scores
        torch.testing.assert_close(scores.sum(1), torch.ones(len(batch), dtype=torch.float64), **TIGHT)


@torch.no_grad()
def test_a_threshold_above_all_shares_leaves_zero():
    model = decomposable.shared_model("bert")
    scores = explainer("information_flow?min_share=0.99").attribute(model, decomposable.batch(model), TARGET)
    assert not scores.any()


@torch.no_grad()
def test_routes_are_as_strong_as_their_weakest_link():
    model = decomposable.shared_model("gpt2")
    batch = decomposable.alone(model, decomposable.batch(model), 1)
    trace = next(iter(trace_examples(model, batch)))
    length = len(trace.positions)
    rows = torch.arange(length)
    (first, second), method = (
        (InformationFlow().compute_map(state, rows) for state in trace.layers),
        InformationFlow(form="routes"),
    )
    gates = [compute_feed_forward_shares(state, rows).amax(0) for state in trace.layers]
    expected = [
        max(float(min(gates[1][-1], second[-1, i], gates[0][i], first[i, j])) for i in range(length))
        for j in range(length)
    ]
    scores = method.attribute(model, batch, [0])[0]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), **TIGHT)


@torch.no_grad()
def test_a_trace_can_leave_out_the_attention_of_the_first_positions(model, batch, trace, monkeypatch):
    first, computed = 5, []
    compute = capture._compute_weights
    monkeypatch.setattr(capture, "_compute_weights", lambda *given: computed.append(given[0].shape) or compute(*given))
    short = next(iter(trace_examples(model, batch, first)))
    # The weights of the first positions are not even computed, so what follows them comes from a fused kernel.
    assert {shape[2] for shape in computed} == {batch.length - first}
    for state, whole in zip(short.layers, trace.layers, strict=True):
        torch.testing.assert_close(state.attention, whole.attention[:, first:], rtol=0, atol=1e-14)
        # no view of the whole matrix, which would stay in memory
        assert state.attention.untyped_storage().nbytes() == state.attention.nbytes


@pytest.mark.real
@torch.no_grad()
def test_hops_lead_through_the_response_before_the_span(model, batch):
    scores = [explainer("flash_trace", hops=hops).attribute(model, batch, (3, 5))[0] for hops in (0, 1, 2)]
    assert (scores[1] > scores[0])[batch.content[0]].all()
    assert (scores[2] > scores[1])[batch.content[0]].all()
    first = [explainer("flash_trace", hops=hops).attribute(model, batch, (0, 1))[0] for hops in (0, 2)]
    torch.testing.assert_close(*first, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("information_flow?form=paths", "rollout, routes"),
        ("information_flow?min_share=1.5", "from 0 to 1"),
        ("flash_trace?hops=-1", "at least 0"),
        ("flash_trace?sinks=all", "own, predicting"),
    ],
)
def test_unknown_choices_are_refused(spec, message):
    with pytest.raises(ExpoundError, match=message):
        explainer(spec)
