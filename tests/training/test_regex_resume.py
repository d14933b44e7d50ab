"""A robust and guided run that was stopped ends at the weights of an unbroken one."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from exegete.objectives import ExplanationGuidedLoss
from exegete.recipes import RECIPES
from runs import ARGUMENTS, difference, generated, weights
from test_resume import interrupted


def train(folder, recipe):
    arguments = ARGUMENTS | {"num_train_epochs": 3, "eval_steps": 2, "per_device_train_batch_size": 16}
    return recipe.train(
        "tiny", generated(size=48), generated(split="dev", size=16), folder, arguments=arguments, head_rate=5.0
    )


@pytest.mark.parametrize("lifetime", [0, 2])
def test_stopped_and_resumed_is_unbroken_also_with_answers_that_are_kept(lifetime, tmp_path):
    """Step 5 lies in the second epoch: with a lifetime of two, the teacher's answers come from the checkpoint."""
    recipe = RECIPES["regex"]("decompx_linear", form="smart", share=0.5 if not lifetime else 1.0, lifetime=lifetime)
    assert train(tmp_path / "whole", recipe).steps == 9
    stopped = train(tmp_path / "run", replace(recipe, trainer=interrupted(signal.SIGTERM, 5)))
    assert not stopped.finished
    resumed = train(tmp_path / "run", recipe)
    assert resumed.finished
    assert difference(weights(tmp_path / "whole"), weights(tmp_path / "run")) == 0.0
    guided = next(term for term in recipe.objectives if isinstance(term, ExplanationGuidedLoss))
    assert guided.memory.size == 0
    entries = [entry for entry in resumed.history if "loss" in entry]
    assert all(entry["explanation_guided"] > 0 for entry in entries)
