import pytest
import torch

import decomposable
from decomposable import FAMILIES
from expound.errors import ExpoundError
from expound.explainers import Alti, GlobEnc
from expound.explainers.decomposition.alti import compute_shares
from expound.explainers.decomposition.trace import trace_examples
from expound.models import Batch
from families import sweep_others

TARGET = torch.tensor([0, 1, 2])
METHODS = [Alti, GlobEnc]


@pytest.fixture(scope="module")
def reference(golden):
    return decomposable.golden_reference(golden)


def assert_golden(mine, expected, **tolerance):
    """Equal where the authors' arrays hold numbers."""
    expected = torch.tensor(expected)
    known = ~expected.isnan()
    assert known.any()
    torch.testing.assert_close(mine.double()[known], expected[known], **(tolerance or {"rtol": 0, "atol": 1e-10}))


def test_scores_equal_golden_numbers(reference):
    cases = [
        (Alti(), "up_to", "alti"),
        (Alti(), "each", "alti_layers"),
        (Alti(p=2), "up_to", "alti_l2"),
        (GlobEnc(), "up_to", "globenc"),
        (GlobEnc(), "each", "globenc_nenc_layers"),
        (GlobEnc(), "each", "globenc_via_decompx_nenc_layers"),
    ]
    for method, layers, name in cases:
        values, model, batch = reference
        with torch.no_grad():
            explanation = type(method)(**(method.params | {"layers": layers})).explain(
                model, batch, torch.zeros(6).long()
            )
            assert_golden(explanation.layers, values[name][:, :, 0])
            if layers == "up_to":
                assert_golden(explanation.scores, values[name][:, -1, 0])


@pytest.mark.parametrize(("method", "name"), [(Alti(), "alti_layers"), (GlobEnc(), "globenc_nenc_layers")])
def test_full_maps_equal_golden_numbers(reference, method, name):
    values, model, batch = reference
    with torch.no_grad():
        for row, trace in enumerate(trace_examples(model, batch)):
            count = len(trace.positions)
            assert_golden(torch.stack(method.compute_maps(trace)), values[name][row, :, :count, :count])


def test_shares_equal_golden_numbers(reference):
    """What the maps are made of: attention alone, with the residual, with the first norm; and ALTI's distances."""
    values, model, batch = reference
    with torch.no_grad():
        for row, trace in enumerate(trace_examples(model, batch)):
            count = len(trace.positions)
            everywhere = torch.arange(count)
            rolled = torch.eye(count, dtype=torch.float64)
            for layer, state in enumerate(trace.layers):
                weights, vectors = state.decompose_middle(everywhere)
                norm = state.parts.norms[0]
                alone = torch.einsum("jih,jhd->ijd", weights[..., :-1], vectors[:, :-1])
                both = torch.einsum("jih,jhd->ijd", weights, vectors)
                behind = norm.linear(both, norm.scale(state.middle)[:, None])
                for name, share in (("N", alone), ("NRes", both), ("NResLN", behind)):
                    assert_golden(share.norm(dim=-1), values[f"globenc_{name}_layers"][row, layer, :count, :count])
                rolled = torch.nn.functional.normalize(behind.norm(dim=-1), p=1, dim=-1) @ rolled
                assert_golden(rolled, values["normrollout_resln"][row, layer, :count, :count])
                answer, weights, vectors = compute_shares(state, everywhere)
                assert_golden(
                    -Alti().compute_distances(answer, weights, vectors).T,
                    values["contrib_raw"][row, layer, :count, :count],
                )


def test_single_precision_is_close_to_golden_numbers(golden, reference):
    values, _, batch = reference
    model = decomposable.golden_model(golden, torch.float32)
    for method, name in ((Alti(), "alti"), (GlobEnc(), "globenc")):
        with torch.no_grad():
            explanation = method.explain(model, batch, torch.zeros(6).long())
        assert_golden(explanation.layers, values[name][:, :, 0], rtol=1e-5, atol=1e-5)


def test_shares_and_biases_are_the_answer_of_the_attention_block():
    for family in FAMILIES:
        model = decomposable.shared_model(family)
        with torch.no_grad():
            for trace in trace_examples(model, decomposable.batch(model)):
                for state in trace.layers:
                    answer, weights, vectors = compute_shares(state, torch.arange(len(state.x)))
                    total = torch.einsum("jih,jhd->id", weights, vectors)
                    bias = state.parts.output.bias
                    rest = torch.zeros_like(total) if bias is None else bias.expand_as(total)
                    if not state.parts.norm_first:
                        norm = state.parts.norms[0]
                        deviation = state.middle.std(-1, correction=0)[:, None]
                        exact = deviation * norm.scale(state.middle)  # ALTI leaves eps out
                        total, rest = total * exact, norm.apply_without_scale(rest) / deviation * exact + norm.bias
                    torch.testing.assert_close(total + rest, answer, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
def test_alti_position_by_position(family):
    """Every share and distance on its own, with loops."""
    model = decomposable.shared_model(family)
    with torch.no_grad():
        trace = list(trace_examples(model, decomposable.batch(model)))[1]
        maps = Alti().compute_maps(trace)
        for state, made in zip(trace.layers, maps, strict=True):
            length, heads = len(state.x), len(state.values)
            output = state.parts.output.weight
            width = output.shape[1] // heads
            for i in range(length):
                near = []
                for j in range(length):
                    share = sum(
                        state.attention[h, i, j] * (output[:, h * width : (h + 1) * width] @ state.values[h, j])
                        for h in range(heads)
                    )
                    share = share + state.x[j] if i == j else share
                    answer = state.middle[i]
                    if not state.parts.norm_first:
                        norm = state.parts.norms[0]
                        share = norm.weight * (share - share.mean()) / answer.std(correction=0)
                        answer = torch.nn.functional.layer_norm(answer, answer.shape, norm.weight, norm.bias, norm.eps)
                    reached = bool((share != 0).any())
                    near.append(max(0.0, float(answer.abs().sum() - (share - answer + 1e-6).abs().sum())) * reached)
                expected = torch.tensor(near, dtype=torch.float64) / (sum(near) or 1.0)
                torch.testing.assert_close(made[i], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
def test_alti_rows_add_up_to_one(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        for trace in trace_examples(model, batch):
            for made in Alti().compute_maps(trace):
                torch.testing.assert_close(made.sum(1), torch.ones_like(made[0]), rtol=0, atol=1e-12)
        explanation = Alti().explain(model, batch, TARGET)
    torch.testing.assert_close(
        explanation.layers.sum(-1), torch.ones_like(explanation.layers[..., 0]), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", sweep_others(FAMILIES))
def test_padding_and_chunks_change_nothing(family, method):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        together = method().explain(model, batch, TARGET)
        chunked = method(max_memory=1).explain(model, batch, TARGET)
        torch.testing.assert_close(chunked.layers, together.layers, rtol=0, atol=1e-12)
        for row in range(len(batch)):
            single = method().explain(model, decomposable.alone(model, batch, row), TARGET[row : row + 1])
            kept = batch.attended[row]
            torch.testing.assert_close(together.scores[row, kept], single.scores[0], rtol=0, atol=1e-10)
            torch.testing.assert_close(together.layers[row][:, kept], single.layers[0], rtol=0, atol=1e-10)
            assert not together.layers[row][:, ~kept].any()


@pytest.mark.parametrize("method", METHODS)
def test_causal_models_give_later_positions_zero(method):
    model = decomposable.shared_model("gpt2")
    with torch.no_grad():
        for trace in trace_examples(model, decomposable.batch(model)):
            for made in method().compute_maps(trace):
                assert not made.triu(1).any()


def test_products_of_huge_maps_keep_their_ratios():
    model = decomposable.model("llama", num_hidden_layers=4)
    model.model.float()
    batch = decomposable.batch(model)
    with torch.no_grad():
        for layer in model.model.model.layers:
            layer.self_attn.o_proj.weight.mul_(1e12)
        scores = GlobEnc().attribute(model, batch, TARGET)
        for row, trace in enumerate(trace_examples(model, batch)):
            maps = [single.double() for single in GlobEnc().compute_maps(trace)]
            expected = torch.linalg.multi_dot(maps[::-1])[-1]
            own = scores[row, trace.positions].double()
            assert expected.max() > torch.finfo(torch.float32).max
            torch.testing.assert_close(own / own.sum(), expected / expected.sum(), rtol=1e-4, atol=1e-7)


def test_alti_has_derivatives():
    """Along a random direction in the space of all weights, against a central difference."""
    model = decomposable.model("bert")
    batch = decomposable.batch(model)
    weights = torch.randn(batch.attended.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parameters = list(model.model.parameters())
    generator = torch.Generator().manual_seed(3)
    directions = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters]

    def loss():
        return (Alti().attribute(model, batch, TARGET) * weights).square().sum()

    slopes = torch.autograd.grad(loss(), parameters, allow_unused=True)
    slope = sum((g * d).sum() for g, d in zip(slopes, directions, strict=True) if g is not None).item()
    step, ends = 1e-6, []
    with torch.no_grad():
        for factor in (step, -2 * step):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(factor * direction)
            ends.append(loss().item())
    assert abs(slope) > 1e-4
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_model_is_restored_after_an_error(method):
    model = decomposable.shared_model("bert")
    batch = decomposable.batch(model)
    model.model.train()
    before = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.model.modules())
    broken = Batch.from_ids(batch.inputs["input_ids"] + 1000, batch.attended)
    # The first check of a model says in a sentence of its own that the model failed.
    with pytest.raises((IndexError, ExpoundError), match="index out of range"):
        method().attribute(model, broken, TARGET)
    assert sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.model.modules()) == before
    assert all(module.training for module in model.model.modules())
    model.model.eval()


def test_unknown_parameters_name_the_known_ones():
    model = decomposable.shared_model("bert")
    batch = decomposable.batch(model)
    with pytest.raises(ExpoundError, match="1, 2"):
        Alti(p=3).attribute(model, batch, TARGET)
