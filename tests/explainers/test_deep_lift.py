"""DeepLIFT's Rescale rule: complete on every family, and equal to its definition written out."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from captum.attr import DeepLift as CaptumDeepLift
from torch import nn

import expound
from causal import causal
from expound import ExpoundError
from expound.models.layers.rescale_rule import RescaleRule
from families import replace_rms_norms, sweep_others
from models.test_generation import PROMPTS, RESPONSES
from small import FAMILIES, small, uneven
from two_sided import NAMES, two_sided

CONFIG = SimpleNamespace(model_type="none")


def slopes(model, at, baseline):
    """The multipliers of a model's summed output."""
    model.config = CONFIG
    rule, at = RescaleRule(model), at.clone().requires_grad_()
    with rule.record():
        model(baseline)
    with rule.replay():
        total = model(at).sum()
    return torch.autograd.grad(total, at)[0]


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
@pytest.mark.parametrize(("baselines", "output"), [("mask", "logit"), ("zero", "prob")])
@torch.no_grad()
def test_scores_sum_to_the_change_of_the_output(family, baselines, output):
    model = small(family)
    replace_rms_norms(model.model)  # transformers' own round to float32, which 1e-12 would see
    batch, target = model.encode(uneven(family, 3)), torch.tensor([0, 1, 2])
    method = expound.explainer("deep_lift", baselines=baselines, output=output)
    explanation = method.explain(model, batch, target, special_tokens=True)
    start, end = (
        model(batch, points).logits for points in (model.embed_reference(batch, baselines), model.embed(batch))
    )
    if output == "prob":
        start, end = start.softmax(-1), end.softmax(-1)
    rise = (end - start).gather(1, target[:, None])[:, 0]
    assert rise.abs().min() > 1e-6
    # ModernBERT rotates in float32.
    tolerance = 1e-6 if family == "modernbert" else 1e-12
    scores = explanation.scores * batch.attended
    torch.testing.assert_close(scores.sum(1), rise, atol=tolerance, rtol=0)
    torch.testing.assert_close(explanation.convergence_delta, torch.zeros_like(rise), atol=tolerance, rtol=0)


def test_captums_rule_explains_what_the_model_predicts():
    model, texts = small("bert"), uneven("bert", 3)
    items = expound.attribute(model, texts, "deep_lift?rule=captum")
    batch = model.encode(texts)
    assert [item.target.value for item in items] == model.predict(batch).tolist()
    expected = expound.explainer("deep_lift", rule="captum").attribute(model, batch)
    for item, scores, real in zip(items, expected, batch.attended, strict=True):
        assert item.token_scores[0] == pytest.approx(scores[real].detach().float().numpy())


@pytest.mark.parametrize("family", [*NAMES, "llama"])
@torch.no_grad()
def test_scores_for_generated_text_sum_too(family):
    model = causal(family) if family == "llama" else two_sided(family)
    batch = model.batch(PROMPTS, RESPONSES)
    for output in ("logit", "log_prob"):
        method = expound.explainer("deep_lift", output=output, baselines="zero")
        # Llama computes its norms in float32.
        assert method.explain(model, batch).convergence_delta.abs().max() < (1e-6 if family == "llama" else 1e-9)
        assert method.attribute(model, batch).abs().max() > 1e-4


def test_a_saturated_minimum_credits_both_inputs():
    """The paper's example: min(1, x₁ + x₂) has no gradient at (1, 1)."""

    class Minimum(nn.Module):
        def forward(self, x):
            return 1 - torch.relu(1 - x.sum(-1))

    point = torch.ones(1, 2, dtype=torch.float64)
    torch.testing.assert_close(slopes(Minimum(), point, torch.zeros_like(point)), point / 2)


def test_a_feed_forward_network_of_modules_has_captums_scores():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    point, baseline = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    expected = CaptumDeepLift(model).attribute(point.clone().requires_grad_(), baseline)
    torch.testing.assert_close(slopes(model, point, baseline) * (point - baseline), expected.detach())
    assert (slopes(model, point, point + 1e-9) - slopes(model, point, baseline)).abs().max() > 1e-3


class Block(nn.Module):
    """One head of attention, a norm, and a gate: [L, d] → a number."""

    def __init__(self, size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(size)
        self.gate = nn.Linear(size, size)

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1)
        hidden = self.norm(weights @ self.value(x))
        return (nn.functional.gelu(self.gate(hidden)) * hidden).sum()


def logarithmic_mean(a, b):
    return a if a == b else (a - b) / (math.log(a) - math.log(b))


def compute_by_definition(block, x, x0):
    """The multipliers of `Block` by definition, entry by entry: a row of slopes for each intermediate number."""
    length, size = x.shape
    # `D[...]`: how each number changes per change of each input, a [L·d] row; (value, baseline, D).
    unit = torch.eye(length * size, dtype=x.dtype).view(length, size, -1)

    def project(linear, node):
        value, before, changes = node
        return linear(value), linear(before), torch.einsum("oi,lik->lok", linear.weight, changes)

    node = (x, x0, unit)
    q, k, v = (project(linear, node) for linear in (block.query, block.key, block.value))

    def multiply(a, b):
        return a[0] * b[0], a[1] * b[1], a[2] * (b[0] + b[1]) / 2 + (a[0] + a[1]) / 2 * b[2]

    def entry(node, *place):
        return tuple(part[place] for part in node)

    def total(nodes):
        return tuple(sum(parts) for parts in zip(*nodes, strict=True))

    rows = []
    for i in range(length):
        logits = [total(multiply(entry(q, i, d), entry(k, j, d)) for d in range(size)) for j in range(length)]
        p, p0 = (torch.stack([logit[side] for logit in logits]).softmax(0) for side in (0, 1))
        means = [logarithmic_mean(float(a), float(b)) for a, b in zip(p, p0, strict=True)]
        middle = total((0, 0, mean / sum(means) * logit[2]) for mean, logit in zip(means, logits, strict=True))[2]
        weights = [(p[j], p0[j], means[j] * (logits[j][2] - middle)) for j in range(length)]
        mixed = [total(multiply(weights[j], entry(v, j, d)) for j in range(length)) for d in range(size)]
        mean = total(mixed)
        centered = [tuple(a - b / size for a, b in zip(number, mean, strict=True)) for number in mixed]
        squares = total(multiply(number, number) for number in centered)
        deviations = [(squares[side] / size + block.norm.eps).sqrt() for side in (0, 1)]
        # √v has the slope 1/(√v + √v₀), and c = y·σ both orders of a product.
        deviation = squares[2] / size / sum(deviations)
        hidden = []
        for number, weight, bias in zip(centered, block.norm.weight, block.norm.bias, strict=True):
            y, y0 = number[0] / deviations[0], number[1] / deviations[1]
            change = (number[2] - (y + y0) / 2 * deviation) / (sum(deviations) / 2)
            hidden.append((y * weight + bias, y0 * weight + bias, change * weight))
        rows.append(hidden)
    result = 0
    for hidden in rows:
        node = tuple(torch.stack([number[part] for number in hidden])[None] for part in range(3))
        gate = project(block.gate, node)
        for d in range(size):
            value, before, changes = entry(gate, 0, d)
            high, low = nn.functional.gelu(value), nn.functional.gelu(before)
            gated = (high, low, changes * (high - low) / (value - before))
            result = result + multiply(gated, hidden[d])[2]
    return result.view(length, size)


def test_an_attention_block_has_the_slopes_of_the_definition():
    torch.manual_seed(1)
    block = Block(4).double().requires_grad_(False)
    for weight in block.parameters():
        weight.add_(torch.randn_like(weight))
    point, baseline = torch.randn(3, 4).double(), torch.randn(3, 4).double()
    expected = compute_by_definition(block, point, baseline)
    torch.testing.assert_close(slopes(block, point, baseline), expected, rtol=1e-10, atol=1e-10)
    rise = block(point) - block(baseline)
    torch.testing.assert_close((expected * (point - baseline)).sum(), rise)


def test_near_the_baseline_slopes_are_the_gradient():
    torch.manual_seed(2)
    block = Block(4).double().requires_grad_(False)
    point = torch.randn(3, 4).double().requires_grad_()
    (gradient,) = torch.autograd.grad(block(point), point)
    close = slopes(block, point.detach(), point.detach() + 1e-7)
    torch.testing.assert_close(close, gradient, atol=1e-6, rtol=1e-5)


def test_a_model_that_chooses_its_parts_is_refused():
    class Chooser(nn.Module):
        def forward(self, x):
            return torch.tanh(x) if x.sum() > 0 else x * torch.sigmoid(x)

    point = torch.ones(1, 2)
    with pytest.raises(ExpoundError, match="chooses its parts by the input"):
        slopes(Chooser(), -point, point)
    with pytest.raises(ExpoundError, match="chooses its parts by the input"):
        slopes(Chooser(), point, -point)
