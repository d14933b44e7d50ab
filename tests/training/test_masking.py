"""Masked fine-tuning: which words are masked, and that a training step sees the masks."""

from __future__ import annotations

import pytest
import torch

import expound
import families
from expound.errors import ExpoundError
from expound.objectives import CrossEntropy, StepContext
from expound.training.loop.training_module import TrainingModule, mask_random_tokens


@pytest.fixture
def model():
    return expound.load(families.tiny("bert"), families.tokenizer("bert"))


def compute_masked_shares(model, share: float, number: int = 0, copies: int = 400):
    batch = model.encode(families.SENTENCES[:1] * copies)
    after = mask_random_tokens(model, batch, share, StepContext(0, number)).inputs["input_ids"]
    gone = after != batch.inputs["input_ids"]
    assert (after[gone] == model.mask_id).all()
    assert not (gone & ~batch.content).any()
    return gone.sum(1) / batch.content.sum(1)


def test_a_share_of_the_examples_loses_words_at_rates_from_none_to_all(model):
    assert not compute_masked_shares(model, 0.0).any()
    rates = compute_masked_shares(model, 1.0)
    assert abs(rates.mean() - 0.5) < 0.05
    assert rates.quantile(0.1) < 0.2
    assert rates.quantile(0.9) > 0.8
    assert abs((compute_masked_shares(model, 0.25) > 0).float().mean() - 0.25) < 0.08


def test_the_same_moment_loses_the_same_words_and_another_loses_others(model):
    assert torch.equal(compute_masked_shares(model, 0.5, 3), compute_masked_shares(model, 0.5, 3))
    assert not torch.equal(compute_masked_shares(model, 0.5, 3), compute_masked_shares(model, 0.5, 4))


def test_training_steps_see_masked_words_and_evaluation_does_not(model):
    batch = model.encode([{"text": text, "label": 1} for text in families.SENTENCES])
    module = TrainingModule(model, [CrossEntropy()], masked_share=1.0)
    clean = model(batch).logits
    assert not torch.equal(module(batch, StepContext(training=True))["logits"], clean)
    assert torch.equal(module(batch, StepContext(training=False))["logits"], clean)


def test_pictures_have_no_words():
    model = expound.load(families.tiny("vit"), families.processor("vit"))
    with pytest.raises(ExpoundError, match="images"):
        mask_random_tokens(model, model.encode(families.examples("vit")), 0.5, StepContext())
