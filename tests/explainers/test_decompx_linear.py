from dataclasses import replace

import pytest
import torch

import decomposable
from decomposable import FAMILIES
from expound import Batch
from expound.explainers import DecompXClassifier
from expound.explainers.backward_rules.decompx_linear import DecompXLinear
from expound.explainers.backward_rules.rules import CAPTURE
from expound.models.layers.architecture import get_layers
from expound.models.layers.backward_rules import apply_backward_rules
from expound.models.layers.held_factors import HeldFactors
from expound.models.layers.operations import mark_input
from expound.models.passes.capture import intercept_inputs
from families import sweep_others
from small import shared

TARGET = torch.tensor([0, 1, 2])


@pytest.mark.parametrize("family", FAMILIES)
def test_bias_is_the_linear_networks_output_for_zero_input(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        explanation = DecompXLinear().explain(model, batch, TARGET)
        factors = HeldFactors(record=True)
        with apply_backward_rules(model.model, factors):
            model(batch, capture=CAPTURE)
        with (
            apply_backward_rules(model.model, factors.make_replay()),
            intercept_inputs(get_layers(model.model), lambda n, x: mark_input(torch.zeros_like(x)) if n == 0 else x),
        ):
            nothing = model.task.score(model(batch, capture=CAPTURE).logits, TARGET)
        score = model.task.score(model(batch).logits, TARGET)
    torch.testing.assert_close(explanation.bias, nothing, rtol=0, atol=1e-10)
    torch.testing.assert_close(explanation.scores.sum(1) + nothing, score, rtol=0, atol=1e-10)
    torch.testing.assert_close(explanation.layers[:, 0], explanation.scores, rtol=0, atol=0)


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
def test_contributions_from_embeddings_sum_to_the_logit(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        explanation = DecompXLinear(start="embeddings").explain(model, batch, TARGET)
        factors = HeldFactors(record=True)
        with apply_backward_rules(model.model, factors):
            model(batch, capture=CAPTURE)
        with apply_backward_rules(model.model, factors.make_replay()):
            nothing = model(batch, mark_input(torch.zeros_like(model.embed(batch))), CAPTURE).logits
        score = model.task.score(model(batch).logits, TARGET)
        hidden = DecompXLinear().explain(model, batch, TARGET)
    torch.testing.assert_close(explanation.bias, model.task.score(nothing, TARGET), rtol=0, atol=1e-10)
    torch.testing.assert_close(explanation.scores.sum(1) + explanation.bias, score, rtol=0, atol=1e-10)
    torch.testing.assert_close(explanation.layers, hidden.layers, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
def test_without_biases_it_is_decompx_with_the_classifier(family):
    model = decomposable.model(family)
    decomposable.zero_biases(model)
    batch = decomposable.batch(model)
    with torch.no_grad():
        linear = DecompXLinear().explain(model, batch, TARGET)
        full = DecompXClassifier().explain(model, batch, TARGET)
    torch.testing.assert_close(linear.bias, torch.zeros_like(linear.bias), rtol=0, atol=1e-10)
    torch.testing.assert_close(linear.scores, full.scores, rtol=0, atol=1e-10)


def test_golden_bias_token(golden):
    """DecompX with a bias token, whose first layer leaves the value bias inside the values."""
    values, model, batch = decomposable.golden_reference(golden)
    value = model.model.bert.encoder.layer[0].attention.self.value
    expected = torch.tensor(values["decompx_c_biastoken_raw"])
    for label in range(3):
        kept = []
        hook = value.register_forward_hook(lambda module, inputs, output, kept=kept: kept.append(output))
        with model.evaluation_mode(), apply_backward_rules(model.model, HeldFactors()):
            score = model(batch, capture=CAPTURE).logits[:, label].sum()
        hook.remove()
        (slope,) = torch.autograd.grad(score, kept)
        inside = (slope * value.bias).sum(-1).detach()
        with torch.no_grad():
            explanation = DecompXLinear().explain(model, batch, torch.full((6,), label))
        mine = (explanation.scores + inside).masked_fill(~batch.attended, 0)
        torch.testing.assert_close(mine, expected[:, :14, label], rtol=0, atol=1e-9)
        torch.testing.assert_close(explanation.bias - inside.sum(1), expected[:, 14, label], rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
@pytest.mark.parametrize("start", ["hidden", "embeddings"])
def test_padding_changes_nothing(family, start):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    method = DecompXLinear(start=start)
    with torch.no_grad():
        together = method.explain(model, batch, TARGET)
        for row in range(len(batch)):
            single = method.explain(model, decomposable.alone(model, batch, row), TARGET[row : row + 1])
            kept = batch.attended[row]
            torch.testing.assert_close(together.scores[row, kept], single.scores[0], rtol=0, atol=1e-10)
            torch.testing.assert_close(together.layers[row][:, kept], single.layers[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("keep_graph", [True, False])
@pytest.mark.parametrize("start", ["hidden", "embeddings"])
def test_padding_of_block_sparse_attention_gets_no_score(start, keep_graph):
    model = shared("big_bird")
    batch = Batch.from_ids(torch.randint(5, 200, (2, 37), generator=torch.Generator().manual_seed(0)))
    with torch.set_grad_enabled(keep_graph):
        explanation = DecompXLinear(start=start).explain(model, batch, torch.tensor([0, 1]))
    assert explanation.scores.shape == (2, 37)
    assert explanation.layers.shape == (2, 2, 37)
    logits = model(batch).logits[[0, 1], [0, 1]]
    torch.testing.assert_close(explanation.scores.sum(1) + explanation.bias, logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("gate", ["value", "both"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "modernbert"])
def test_contributions_sum_to_the_logit_with_both_gate_rules(family, gate):
    model = decomposable.model(family)
    decomposable.zero_biases(model)
    batch = decomposable.batch(model)
    with torch.no_grad():
        explanation = DecompXLinear(gate_rule=gate).explain(model, batch, TARGET)
        score = model.task.score(model(batch).logits, TARGET)
    torch.testing.assert_close(explanation.scores.sum(1), score, rtol=0, atol=1e-10)


def test_the_rules_for_gates_differ():
    model = decomposable.shared_model("llama")
    batch = decomposable.batch(model)
    with torch.no_grad():
        one, two = (DecompXLinear(gate_rule=gate).attribute(model, batch, TARGET) for gate in ("value", "both"))
    assert (one - two).abs().max() > 1e-3


def test_span_contributions_sum_to_start_plus_end_logit():
    model = decomposable.model("bert", "QuestionAnswering", num_labels=2)
    batch = decomposable.batch(model)
    target = torch.tensor([[2, 4], [1, 3], [0, 0]])
    with torch.no_grad():
        explanation = DecompXLinear().explain(model, batch, target)
        score = model.task.score(model(batch).logits, target)
    torch.testing.assert_close(explanation.scores.sum(1) + explanation.bias, score, rtol=0, atol=1e-10)


HIDDEN = [(family, "hidden") for family in ("bert", "gpt2", "albert", "distilbert", "big_bird")]
EMBEDDINGS = [(family, "embeddings") for family in ("roberta", "llama")]


BOTH = [("llama", "hidden", "both"), ("qwen2", "embeddings", "both")]


@pytest.mark.parametrize(("family", "start", "gate"), [(*case, "value") for case in HIDDEN + EMBEDDINGS] + BOTH)
def test_score_derivatives_equal_finite_differences(family, start, gate):
    """Along a random direction in the space of all weights, against a central difference."""
    model = decomposable.model(family)
    batch = decomposable.batch(model)
    method = DecompXLinear(start=start, gate_rule=gate)
    weights = torch.randn(batch.attended.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss():
        return (method.attribute(model, batch, TARGET) * weights).square().sum()

    parameters = list(model.model.parameters())
    generator = torch.Generator().manual_seed(3)
    directions = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters]
    slopes = torch.autograd.grad(loss(), parameters, allow_unused=True)
    slope = sum((g * d).sum() for g, d in zip(slopes, directions, strict=True) if g is not None)
    step, ends = 1e-5, []
    with torch.no_grad():
        for factor in (step, -2 * step):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(factor * direction)
            ends.append(loss())
    assert abs(slope) > 1e-3
    torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), slope.detach(), rtol=1e-5, atol=1e-7)


def test_second_derivatives():
    model = decomposable.model("bert")
    batch = decomposable.batch(model, (4, 3))
    layer = model.model.bert.encoder.layer[0]
    chosen = [layer.attention.self.query.bias, layer.output.LayerNorm.weight, layer.intermediate.dense.bias]

    total = DecompXLinear().attribute(model, batch, TARGET[:2]).square().sum()
    slopes = torch.autograd.grad(total, chosen, create_graph=True)
    generator = torch.Generator().manual_seed(3)
    directions = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in chosen]
    along = sum((s * d).sum() for s, d in zip(slopes, directions, strict=True))
    twice = torch.autograd.grad(along, chosen)
    second = sum((s * d).sum() for s, d in zip(twice, directions, strict=True)).item()
    step, ends = 1e-5, []
    for factor in (step, -2 * step):
        with torch.no_grad():
            for parameter, direction in zip(chosen, directions, strict=True):
                parameter.add_(factor * direction)
        total = DecompXLinear().attribute(model, batch, TARGET[:2]).square().sum()
        slopes = torch.autograd.grad(total, chosen)
        ends.append(sum((s * d).sum() for s, d in zip(slopes, directions, strict=True)).item())
    assert abs(second) > 1e-3
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(second, rel=1e-5)


def test_the_scores_are_the_same_with_and_without_a_graph():
    model = decomposable.shared_model("mistral")
    batch = decomposable.batch(model)
    kept = DecompXLinear().attribute(model, batch, TARGET)
    with torch.no_grad():
        plain = DecompXLinear().attribute(model, batch, TARGET)
    assert kept.requires_grad
    assert not plain.requires_grad
    torch.testing.assert_close(kept.detach(), plain, rtol=0, atol=1e-12)


def test_token_types_in_the_layer_of_words_are_added_like_positions():
    model = shared("gpt2")
    batch = model.encode(["a moving film"])
    typed = replace(batch, inputs={**batch.inputs, "token_type_ids": torch.ones_like(batch.inputs["input_ids"])})
    scores = DecompXLinear().attribute(model, typed)
    transformer = model.model.transformer
    with torch.no_grad():
        positions = transformer.wpe.weight.clone()
        transformer.wpe.weight += transformer.wte.weight[1]
        try:
            expected = DecompXLinear().attribute(model, batch)
        finally:
            transformer.wpe.weight.copy_(positions)
    torch.testing.assert_close(scores, expected)
