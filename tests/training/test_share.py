"""Terms that are estimated on a share of each batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.objectives import (
    CrossEntropy,
    ExplanationGuidedLoss,
    GradientPenalty,
    Objective,
    StepContext,
    VirtualAdversarialLoss,
)
from expound.training.loop.training_module import TrainingModule, sample_share
from runs import bert


@dataclass(frozen=True)
class Looking(Objective):
    """A term that keeps the steps it is called with."""

    batch_fraction: float = 1.0
    weight: float = 1.0
    seen: list = field(default_factory=list)
    name: ClassVar[str] = "looking"

    def __call__(self, step):
        self.seen.append(step)
        return step.task_losses.mean()


def batch_of(model, count=6):
    texts = families.examples("bert", 6)[:count]
    return model.encode([{"text": text, "label": i % 3} for i, text in enumerate(texts)])


@pytest.mark.parametrize(("share", "size"), [(0.5, 3), (0.25, 2), (0.01, 1), (1 / 3, 2)])
def test_a_share_has_random_examples_in_order_without_empty_columns(share, size):
    model = bert()
    batch = batch_of(model)
    draws = set()
    for number in range(20):
        part = sample_share(batch, share, StepContext(number=number))
        texts = [alignment.texts[0] for alignment in part.alignments]
        assert len(texts) == size
        assert part.attended.any(0).all()
        places = [next(i for i in range(6) if batch.alignments[i].texts[0] == text) for text in texts]
        assert places == sorted(set(places))
        draws.add(tuple(places))
    assert len(draws) > 3
    assert torch.equal(
        sample_share(batch, share, StepContext(number=4)).labels,
        sample_share(batch, share, StepContext(number=4)).labels,
    )


def test_the_full_batch_serves_the_others_and_all_of_it_counts_in_evaluation():
    model = bert()
    batch = batch_of(model)
    half = Looking(0.5)
    module = TrainingModule(model, [CrossEntropy(), half])
    both = module(batch, StepContext())
    assert len(half.seen[0].batch) == 3
    assert both["logits"].shape[0] == 6
    assert both["terms"][0].item() == pytest.approx(
        module(batch, StepContext(training=False))["terms"][0].item(), rel=1e-5
    )
    assert half.seen[1].batch is batch


def test_the_estimate_is_the_mean_over_draws_of_the_whole_term():
    """Exactly so: over all pairs of examples, each mean is half the sum of both."""
    model = bert()
    batch = batch_of(model, 4)
    whole = TrainingModule(model, [Looking()])(batch, StepContext())["terms"][0].item()
    found = {}
    for number in range(60):
        step = Looking(0.5)
        value = TrainingModule(model, [CrossEntropy(), step])(batch, StepContext(number=number))["terms"][1].item()
        found[tuple(alignment.texts[0] for alignment in step.seen[0].batch.alignments)] = value
    assert len(found) == 6
    assert sum(found.values()) / 6 == pytest.approx(whole, rel=1e-5)


def test_terms_with_one_share_see_the_same_examples_and_the_main_pass_stays_plain():
    model = bert()
    batch = batch_of(model)
    plain = TrainingModule(model, [CrossEntropy()])(batch, StepContext())
    terms = [CrossEntropy(), GradientPenalty(batch_fraction=0.5), VirtualAdversarialLoss(batch_fraction=0.5)]
    terms += [ExplanationGuidedLoss(expound.explainer("decompx_linear"), batch_fraction=0.5)]
    module = TrainingModule(model, terms)
    found = module(batch, StepContext())
    assert torch.equal(found["logits"], plain["logits"])
    part = sample_share(batch, 0.5, StepContext())
    alone = [CrossEntropy(), GradientPenalty(), VirtualAdversarialLoss(), ExplanationGuidedLoss(terms[3].explainer)]
    expected = TrainingModule(model, alone)(part, StepContext())["terms"][[1, 3]]
    torch.testing.assert_close(found["terms"][[1, 3]], expected, rtol=1e-4, atol=1e-6)
    found["terms"].sum().backward()
    assert all(weight.grad is None or torch.isfinite(weight.grad).all() for weight in model.parameters())


@pytest.mark.parametrize("share", [0.0, 1.5, -0.5])
def test_a_share_is_above_zero_and_at_most_one(share):
    model = bert()
    with pytest.raises(ExpoundError, match="share of the batch"):
        sample_share(batch_of(model), share, StepContext())
