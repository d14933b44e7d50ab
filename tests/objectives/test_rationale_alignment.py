"""The explanation loss: numbers worked out by hand, derivatives, and missing rationales."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest
import torch
import torch.nn.functional as F

import expound
import families
from expound import ExpoundError
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.objectives import RationaleAlignment, StepContext, TrainingStep
from expound.testing.models import replace_layer_norms
from expound.training.loop.training_module import TrainingModule
from smooth import along_directions

# torch gives the padding token, which gim is measured from otherwise, no gradient.
RULES = ("decompx_linear", "attn_lrp", "cp_lrp", "gim?baseline_id=7")
SIGNED = ("input_x_gradient", *RULES)
GUIDES = ("attention_last", "attention_rollout", "generic_attention", "alti", *SIGNED)


def two_tokens(marked=(True, False), looked=True) -> Batch:
    """[CLS] a b [SEP], with a label."""
    attended = torch.ones(1, 4, dtype=torch.bool)
    content = torch.tensor([[False, True, True, False]])
    return Batch(
        {"input_ids": torch.tensor([[2, 5, 6, 3]]), "attention_mask": attended.long()}, attended, content,
        torch.tensor([[-1, 0, 1, -1]]), rationale_mask=torch.tensor([[False, *marked, False]]),
        has_rationale=torch.tensor([looked]), labels=torch.tensor([1]),
    )  # fmt: skip


def model(**changes):
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ExplainedModel(families.tiny("bert", **(quiet | changes)), families.tokenizer("bert"))


def loss(guide, outputs, batch=None, **params):
    batch = two_tokens() if batch is None else batch
    step = TrainingStep(model(), batch, outputs)
    return float(RationaleAlignment(expound.explainer(guide), **{"scale": "position"} | params)(step).detach())


def last_layer(*heads) -> Outputs:
    """Return outputs with the attention of one layer, from the first row of each head."""
    weights = torch.eye(4).repeat(1, len(heads), 1, 1)
    weights[0, :, 0] = torch.tensor(heads)
    return Outputs(torch.zeros(1, 3), attentions=(weights,))


def test_attention_by_hand():
    """Mean over heads .30 .31 .29 .10, times 100: e = softmax(30, 31, 29, 10); t = (0, 1, 0, 0)."""
    outputs = last_layer([0.20, 0.41, 0.29, 0.10], [0.40, 0.21, 0.29, 0.10])
    total = 1 + exp(-1) + exp(-2) + exp(-21)
    assert loss("attention_last", outputs) == pytest.approx(2 * (1 - 1 / total) / 4, abs=1e-6)


def test_rollout_by_hand():
    """The first layer mixes evenly, in the second [CLS] looks at a: .375 .375 .125 .125; t = (0, 0, 1, 0)."""
    second = torch.eye(4)[None, None].clone()
    second[..., 0, :] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    outputs = Outputs(torch.zeros(1, 3), attentions=(torch.full((1, 1, 4, 4), 0.25), second))
    expected = (0.375 + 0.375 + 0.875 + 0.125) / 4
    assert loss("attention_rollout", outputs, two_tokens((False, True))) == pytest.approx(expected)


def test_both_tokens_marked_share_the_goal():
    outputs = last_layer([0.25, 0.25, 0.25, 0.25])
    assert loss("attention_last", outputs, two_tokens((True, True))) == pytest.approx(1 / 4)


def gradient_outputs(rows=1) -> Outputs:
    """The gold logit is 1·1 + 2·2 + 2·(−2) + 5·0, the others are zero: scores 1, 4, −4, 0 of norm √33."""
    embeddings = torch.tensor([1.0, 2.0, -2.0, 0.0]).view(1, 4, 1).repeat(rows, 1, 1).requires_grad_()
    gold = (embeddings * torch.tensor([1.0, 2.0, 2.0, 5.0]).view(1, 4, 1)).sum((1, 2))
    return Outputs(torch.stack([gold * 0, gold, gold * 0], 1), embeddings)


def test_input_times_gradient_by_hand():
    """Divided by the norm, then magnitudes; the goal is 1 at a."""
    expected = (1 / sqrt(33) + (1 - 4 / sqrt(33)) + 4 / sqrt(33) + 0) / 4
    assert loss("input_x_gradient", gradient_outputs()) == pytest.approx(expected)


def concatenate_batches(*batches: Batch) -> Batch:
    names = ("attended", "content", "word_of", "rationale_mask", "has_rationale", "labels")
    inputs = {name: torch.cat([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    return Batch(inputs, **{name: torch.cat([getattr(batch, name) for batch in batches]) for name in names})


def test_who_counts_where_nothing_is_marked_or_nobody_looked():
    """Shared goals: only who has a mark. Plain goals: everybody who was looked at, with a goal of zeros."""
    batch = concatenate_batches(two_tokens(), two_tokens((False, False)), two_tokens((False, False), looked=False))
    attention = RationaleAlignment(expound.explainer("attention_last"), scale="position")
    assert attention.select_examples(batch).tolist() == [True, False, False]
    assert float(attention.size(batch)) == 4
    gradient = RationaleAlignment(expound.explainer("input_x_gradient"), scale="position")
    assert gradient.select_examples(batch).tolist() == [True, True, False]
    marked, unmarked = (1 / sqrt(33) + 1), 9 / sqrt(33)
    assert loss("input_x_gradient", gradient_outputs(3), batch) == pytest.approx((marked + unmarked) / 8)


def test_without_any_rationale_the_loss_is_zero_and_so_is_its_gradient():
    explained = model()
    for guide in GUIDES:
        batch = replace(explained.encode(families.examples("bert")), labels=torch.tensor([0, 1, 2, 0, 1]))
        module = TrainingModule(explained, [RationaleAlignment(expound.explainer(guide))]).train()
        terms = module(batch, StepContext())["terms"]
        assert terms.tolist() == [0.0]
        terms.sum().backward()
        gradients = [weight.grad for weight in explained.parameters() if weight.grad is not None]
        assert all(not gradient.any() for gradient in gradients)


def make_marked_batch(explained, marks=(0, 2)):
    """Return texts of uneven length; the first words of some are marked."""
    rows = [
        {"text": text, "label": i % 3, "rationale": [[0, 8]] if i in marks else None}
        for i, text in enumerate(families.examples("bert"))
    ]
    return explained.encode(rows)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("distance", ["mae", "mse", "bce", "kl"])
def test_scores_are_those_of_torch_on_each_example_alone(guide, distance):
    """Also: neither padding nor neighbors change an example's part."""
    explained = model()
    batch = make_marked_batch(explained)
    objective = RationaleAlignment(expound.explainer(guide), distance=distance, scale="position")
    found = TrainingModule(explained, [objective]).eval()(batch, StepContext(training=False))["terms"][0]
    total, size = 0.0, 0
    for row in (0, 2):
        one = batch.select([row]).trim_padding()[0]
        gold = (one.rationale_mask & one.content).double()[0]
        scores = (
            objective.explainer.explain(explained, one, one.labels, special_tokens=True).scores.detach().double()[0]
        )
        if guide == "attention_last":
            scores = (100 * scores).softmax(0)
        elif guide in SIGNED:
            scores = F.normalize(scores, dim=0).abs()
        elif guide == "generic_attention":
            scores = scores / scores.sum()
        if guide not in SIGNED or distance == "kl":
            gold = gold / gold.sum()
        if distance == "kl":
            total += float(F.kl_div((scores / scores.sum()).clamp(min=1e-7).log(), gold, reduction="sum"))
            size += 1
            continue
        reference = {"mae": F.l1_loss, "mse": F.mse_loss, "bce": F.binary_cross_entropy}[distance]
        total += float(reference(scores.clamp(1e-7, 1 - 1e-7), gold, reduction="sum"))
        size += one.length
    torch.testing.assert_close(float(found), total / size, rtol=1e-4, atol=1e-5)


class Twice(RationaleAlignment):
    """The loss without fused kernels, which have no second derivative."""

    @property
    def capture(self):
        return super().capture | Capture(differentiable_twice=True)


@pytest.mark.parametrize("guide", GUIDES)
def test_derivatives_of_first_and_second_order(guide):
    """Along three random directions in the weights of three layers."""
    changes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    explained = model(dtype=torch.float64, **changes).train()
    batch = make_marked_batch(explained).select([0]).trim_padding()[0]
    if guide not in ("alti", *RULES):
        replace_layer_norms(explained)
    module = TrainingModule(explained, [Twice(expound.explainer(guide), distance="mse")]).train()
    at = along_directions(module, batch)
    point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(at(point).sum(), point)
    assert slope.abs().min() > 1e-9
    assert torch.autograd.gradcheck(at, (point,), eps=1e-6, atol=1e-6, rtol=1e-4)
    assert torch.autograd.gradgradcheck(at, (point,), eps=1e-6, atol=1e-5, rtol=1e-3)


def test_the_step_s_own_pass_serves_what_needs_one_pass():
    for guide, expected in (("attention_last", 1), ("attention_rollout", 1), ("input_x_gradient", 1), ("alti", 2)):
        explained, calls = model(), []
        # The first explanation also checks the model.
        expound.explainer(guide).attribute(explained, make_marked_batch(explained))
        explained.model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        module = TrainingModule(explained, [RationaleAlignment(expound.explainer(guide))]).train()
        module(make_marked_batch(explained), StepContext())["terms"].sum().backward()
        assert len(calls) == expected, guide


@pytest.mark.parametrize("guide", GUIDES)
def test_by_default_an_example_counts_once_and_its_distance_goes_from_0_to_2_at_any_length(guide):
    """The sum over an example's positions: L times the paper's mean, and the same for a rationale of all or of none."""
    explained = model()
    batch = make_marked_batch(explained)
    chosen = {"explainer": expound.explainer(guide), "normalization": "sum"}
    found, distances = TrainingModule(explained, [RationaleAlignment(**chosen)]).eval(), []
    value = found(batch, StepContext(training=False))["terms"][0]
    for row in (0, 2):
        one = batch.select([row]).trim_padding()[0]
        mean = TrainingModule(explained, [RationaleAlignment(**chosen, scale="position")]).eval()
        distances.append(mean(one, StepContext(training=False))["terms"][0] * one.attended.sum())
        assert 0 < distances[-1] < 2
    torch.testing.assert_close(value, torch.stack(distances).mean())


def test_a_zero_attribution_has_a_finite_gradient():
    embeddings = torch.zeros(1, 4, 1, requires_grad=True)
    gold = (embeddings * 2).sum((1, 2))
    outputs = Outputs(torch.stack([gold, gold, gold], 1), embeddings)
    batch = two_tokens()
    step = TrainingStep(model(), batch, outputs)
    value = RationaleAlignment(expound.explainer("input_x_gradient"), scale="position")(step)
    assert float(value.detach()) == pytest.approx(1 / 4)
    (slope,) = torch.autograd.grad(value, embeddings)
    assert torch.isfinite(slope).all()


def test_a_rationale_that_truncation_cut_off_is_none():
    explained = model()
    explained.processing_class.model_max_length, before = 8, explained.processing_class.model_max_length
    try:
        long = " ".join(families.SENTENCES)
        batch = explained.encode([{"text": long, "label": 0, "rationale": [[len(long) - 5, len(long)]]}])
    finally:
        explained.processing_class.model_max_length = before
    assert batch.has_rationale.tolist() == [True]
    assert not RationaleAlignment(expound.explainer("attention_rollout"), scale="position").select_examples(batch).any()
    assert RationaleAlignment(expound.explainer("input_x_gradient"), scale="position").select_examples(batch).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"explainer": "occlusion"}, "not differentiable"),
        ({"distance": "huber"}, "unknown distance 'huber'"),
        ({"normalization": "l1"}, "unknown normalization 'l1'"),
        ({"target": "gold"}, "unknown target 'gold'"),
    ],
)
def test_bad_choices_are_named(arguments, message):
    arguments = {"explainer": "attention_last"} | arguments
    with pytest.raises(ExpoundError, match=message):
        RationaleAlignment(expound.explainer(arguments.pop("explainer")), **arguments)


def test_kl_is_zero_at_the_goal_and_known_elsewhere():
    weights = torch.eye(4)[None, None].clone()
    weights[..., 0, :] = torch.tensor([0.25, 0.5, 0.25, 0.0])
    outputs = Outputs(torch.zeros(1, 3), attentions=(weights,))
    found = loss("attention_last", outputs, distance="kl", normalization="none")
    assert found == pytest.approx(-log(0.5))
