"""The shipped contract holds for every native objective, and catches what breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from expound.objectives import OBJECTIVES, Objective
from expound.testing import ObjectiveContract
from expound.testing.models import random_model


@pytest.mark.parametrize("name", OBJECTIVES)
class TestNativeObjectives(ObjectiveContract):
    @pytest.fixture
    def objective(self, name):
        return OBJECTIVES[name]()


@dataclass(frozen=True)
class Careless(Objective):
    """A term with a sum for a mean, noise of the global generator, a detached part, and no error for NaN."""

    weight: float = 1.0
    name: ClassVar[str] = "careless"

    def __call__(self, step):
        logits = step.outputs.logits
        return (logits.square().sum() * logits.detach().mean() + torch.rand(())).nan_to_num()


@pytest.mark.parametrize(
    "test",
    [
        "test_the_gradient_is_the_derivative",
        "test_the_term_of_a_batch_is_the_mean_over_its_examples",
        "test_nan_weights_give_no_finite_term",
        "test_random_numbers_come_from_the_step",
    ],
)
def test_a_careless_objective_is_caught(test):
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(ObjectiveContract(), test)(Careless(), random_model())
