"""Every method on spans of generated text: padding, one span at a time, sums over tokens, contrasts."""

import numpy as np
import pytest
import torch

import families
from causal import CAUSAL, causal
from expound import ExpoundError, explainer
from expound.explainers import single_pass
from expound.models.generation.model import GeneratingModel
from expound.testing.no_side_effects import simulate_use, snapshot
from models.test_generation import PROMPTS, RESPONSES, generating, padded_right, shared_generating
from small import NATIVE, make_explainer
from two_sided import NAMES as TWO_SIDED
from two_sided import two_sided

METHODS = [name for name in NATIVE if name != "decompx_classifier"]
LINEAR = [
    "input_x_gradient",
    "integrated_gradients?n_steps=4",
    "sequential_integrated_gradients",
    "decompx_linear",
    "attn_lrp",
    "cp_lrp",
    "gim?baseline_id=3",
    "occlusion",
    "occlusion?perturbation=remove&unit=token",
    "shapley_sampling?n_samples=24",
]
TARGET = torch.tensor([[0, 2], [2, 5], [1, 2]])


# The contract of every explainer asks GPT-2.
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", families.sweep_others(["llama", "gpt2"], ["llama"]))
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(family, method):
    check_padding(shared_generating(family), make_explainer(method), padded_right(PROMPTS, RESPONSES))


def check_padding(model, single, right_padded):
    """Requires the same scores of examples alone and in batches padded on either side."""
    together = single.attribute(model, model.batch(PROMPTS, RESPONSES), TARGET)
    right = single.attribute(model, right_padded, TARGET)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        alone = single.attribute(model, model.batch(prompt, response), TARGET[row : row + 1])[0]
        assert alone[: len(prompt)].any()
        assert not alone[len(prompt) :].any()
        for scores in (together[row, -len(alone) :], right[row, : len(alone)]):
            torch.testing.assert_close(scores, alone, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize("output", ["log_prob", "logit"])
@torch.no_grad()
def test_rows_of_tokens_add_up_to_the_span(method, output):
    model = shared_generating("gpt2")
    batch, single = model.batch(PROMPTS[1], RESPONSES[1]), explainer(method, output=output)
    rows = torch.cat([single.attribute(model, batch, token) for token in range(1, 4)])
    torch.testing.assert_close(rows.sum(0), single.attribute(model, batch, (1, 4))[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", LINEAR)
@torch.no_grad()
def test_a_contrast_is_the_difference_of_two_logits(method):
    model, single = shared_generating("gpt2"), explainer(method, output="logit")
    one, other = (single.attribute(model, model.batch(PROMPTS[0], [token]), 0) for token in (50, 99))
    contrast = single.attribute(model, model.batch(PROMPTS[0], [50], foil_ids=[99]), 0)
    torch.testing.assert_close(contrast, one - other, rtol=1e-9, atol=1e-10)
    swapped = explainer(method).attribute(model, model.batch(PROMPTS[0], [99], foil_ids=[50]), 0)
    torch.testing.assert_close(contrast, -swapped, rtol=1e-9, atol=1e-10)
    assert not single.attribute(model, model.batch(PROMPTS[0], [50], foil_ids=[50]), 0).any()


@torch.no_grad()
def test_integrated_gradients_are_complete():
    model = generating()
    batch = model.batch(PROMPTS, RESPONSES)
    explanation = explainer("integrated_gradients", n_steps="auto", tolerance=1e-3).explain(model, batch, TARGET)
    keep = torch.stack([batch.attended, ~batch.attended])
    full, nothing = model.task.score_removal(model.predict_perturbed(batch, keep, "mask"), TARGET)
    torch.testing.assert_close(explanation.scores.sum(1), full - nothing, rtol=2e-3, atol=1e-6)


@torch.no_grad()
def test_outputs_rank_tokens_differently_but_agree_where_they_must():
    model = generating()
    batch = model.batch(PROMPTS[0], RESPONSES[0])
    scores = {
        o: explainer("input_x_gradient", output=o).attribute(model, batch, 1) for o in ("logit", "log_prob", "prob")
    }
    chance = model.probabilities(batch)[0, 1, 0].exp()
    torch.testing.assert_close(scores["prob"], chance * scores["log_prob"])
    torch.testing.assert_close(explainer("input_x_gradient").attribute(model, batch, 1), scores["log_prob"])
    assert (scores["logit"] - scores["log_prob"]).abs().max() > 1e-3


@pytest.mark.parametrize("unit_name", ["sentence", "source"])
@torch.no_grad()
def test_units_given_with_the_ids_are_removed_as_one(unit_name):
    model = generating()
    unit = [[-1, 0, 0, 0, 2, 2, 1, 1, 1], [0, 0, 1], [5, 5, 5, 5, 5, 5]]
    batch = model.batch(PROMPTS, RESPONSES, [[n >= 0 for n in row] for row in unit], unit_of=unit)
    method = explainer("occlusion", unit=unit_name, perturbation="remove")
    scores = method.attribute(model, batch)
    whole = model.task.score_removal(model.probabilities(batch), model.resolve_target(batch))
    for row, numbers in enumerate(unit):
        own = scores[row, batch.attended[row]].numpy()
        for number in {number for number in numbers if number >= 0}:
            left = [token for token, one in zip(PROMPTS[row], numbers, strict=True) if one != number]
            without = model.batch(left or [model.mask_id], RESPONSES[row])
            drop = whole[row] - model.task.score_removal(model.probabilities(without), model.resolve_target(without))[0]
            here = own[: len(numbers)][np.array(numbers) == number]
            np.testing.assert_allclose(here, drop / len(here), rtol=1e-9)
    with pytest.raises(ExpoundError, match="give the batch unit_of"):
        method.attribute(model, model.batch(PROMPTS, RESPONSES))


def test_the_model_is_left_as_it_came():
    model = generating("gpt2", torch.float32)
    simulate_use(model)
    batch = model.batch(PROMPTS, RESPONSES)
    before = snapshot(model)
    for method in METHODS:
        make_explainer(method).attribute(model, batch, TARGET)
        assert snapshot(model) == before, method
        with pytest.raises(ExpoundError, match="start < end"):
            make_explainer(method).attribute(model, batch, (1, 1))
        assert snapshot(model) == before, method


@pytest.mark.parametrize("method", [name for name in METHODS if make_explainer(name).differentiable])
def test_attributions_keep_a_graph_to_the_weights(method):
    model = generating()
    scores = make_explainer(method).attribute(model, model.batch(PROMPTS[:2], RESPONSES[:2]), (0, 2))
    scores.square().sum().backward()
    slopes = [weight.grad for weight in model.model.parameters() if weight.grad is not None]
    assert any(slope.any() for slope in slopes)


@torch.no_grad()
def test_half_precision_answers():
    model = GeneratingModel(families.tiny("llama", "CausalLM", dtype=torch.bfloat16), families.processor("llama"))
    batch = model.batch(PROMPTS, RESPONSES)
    for method in ("saliency", "occlusion", "attention_rollout", "decompx_linear"):
        assert explainer(method).attribute(model, batch).isfinite().all()


@pytest.mark.parametrize("family", [*CAUSAL, *TWO_SIDED])
@pytest.mark.parametrize("method", ["input_x_gradient", "saliency"])
@torch.no_grad()
def test_several_targets_at_once_have_the_scores_of_each_alone(monkeypatch, method, family):
    single_precision = family in (
        "gemma2",
        "mixtral",
        "qwen2_moe",
    )  # no gradients at padding, or no products, in double
    dtype = torch.float32 if single_precision else torch.float64
    model = (two_sided if family in TWO_SIDED else causal)(family, dtype)
    batch, single = model.batch(PROMPTS, RESPONSES), explainer(method)
    targets = torch.tensor([[[token, token + 1]] * len(PROMPTS) for token in (0, 1)])
    monkeypatch.setattr(single_pass, "TOKENS_PER_BACKWARD_PASS", 0)
    apart = single.attribute_each(model, batch, targets)
    monkeypatch.setattr(single_pass, "TOKENS_PER_BACKWARD_PASS", 1 << 20)
    together = single.attribute_each(model, batch, targets)
    close = {"rtol": 1e-4, "atol": 1e-6} if single_precision else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(together, apart, **close)
    assert apart.any()
