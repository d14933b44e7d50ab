"""Sums over parts by derivatives carried forward against sums of the scores that gradients give."""

import pytest
import torch

from causal import CAUSAL, causal
from expound import explainer
from expound.explainers.gradients.paths import is_forward_cheaper, sum_scores_forward

METHODS = ["input_x_gradient", "integrated_gradients?n_steps=3&baselines=zero", "attn_lrp", "cp_lrp", "gim"]
TARGETS = [torch.tensor(spans) for spans in ([[0, 2], [1, 2]], [[1, 2], [0, 1]])]


def make_batch_and_parts(model, foils=None):
    batch = model.batch([list(range(5, 20)), list(range(30, 40))], [[4, 5, 6], [7, 8]], foil_ids=foils)
    number = torch.arange(batch.length) // 6
    return batch, (number == torch.arange(3)[:, None])[:, None] & batch.content


def check_sums(model, batch, parts, method, tolerance):
    found = sum_scores_forward(method, model, batch, TARGETS, parts)
    for target, sums in zip(TARGETS, found, strict=True):
        scores = method.attribute(model, batch, target)
        expected = (scores * parts).sum(-1).T.detach()
        assert (sums - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_forward_sums_equal_sums_of_backward_scores(family, method):
    """transformers computes RMSNorm and rotations in float32, and rounds forward another way than back."""
    model = causal(family)
    batch, parts = make_batch_and_parts(model)
    check_sums(model, batch, parts, explainer(method), 1e-12 if family == "gpt2" else 2e-6)


@pytest.mark.parametrize("family", [name for name in CAUSAL if "experts" not in str(CAUSAL[name])])
def test_forward_sums_work_for_every_family(family):
    model = causal(family)
    batch, parts = make_batch_and_parts(model)
    check_sums(model, batch, parts, explainer("input_x_gradient"), 5e-6)


def test_forward_sums_of_contrasts_and_logits():
    model = causal("gpt2")
    batch, parts = make_batch_and_parts(model, foils=[[9, 9, 9], [8, 7]])
    check_sums(model, batch, parts, explainer("input_x_gradient"), 1e-12)
    check_sums(model, *make_batch_and_parts(model), explainer("input_x_gradient", output="logit"), 1e-12)


def test_models_with_experts_fall_back_to_backward_passes():
    model = causal("mixtral", torch.float32)
    batch, parts = make_batch_and_parts(model)
    assert sum_scores_forward(explainer("input_x_gradient"), model, batch, TARGETS, parts) is None


def test_forward_mode_is_chosen_when_it_takes_fewer_passes():
    assert is_forward_cheaper(explainer("input_x_gradient"), 32, 8)
    assert not is_forward_cheaper(explainer("input_x_gradient"), 8, 8)
    for method in ("saliency", "occlusion", "input_x_gradient?aggregate=l2", "input_x_gradient?output=prob"):
        assert not is_forward_cheaper(explainer(method), 32, 8)
