"""A robust and guided run that was stopped ends at the weights of an unbroken one."""

from __future__ import annotations

import signal

from expound.objectives import ExplanationGuidedLoss
from expound.recipes import RECIPES
from runs import ARGUMENTS, difference, load_generated, weights
from test_resume import Interrupt


def train(folder, recipe, callbacks=()):
    arguments = ARGUMENTS | {"num_train_epochs": 2, "eval_steps": 2}
    return recipe.train(
        "tiny",
        load_generated(size=48),
        load_generated(split="dev", size=16),
        folder,
        arguments=arguments,
        callbacks=callbacks,
        head_lr_multiplier=5.0,
    )


def test_stopped_and_resumed_is_unbroken_with_a_rate_of_the_head_and_kept_explanations(tmp_path):
    """Step 5 lies in the second epoch: with a lifetime of two, the explanations come from the checkpoint."""
    recipe = RECIPES["regex"]("decompx_linear", form="smart", batch_fraction=1.0, lifetime=2)
    assert train(tmp_path / "whole", recipe).steps == 6
    stopped = train(tmp_path / "run", recipe, [Interrupt(signal.SIGTERM, 5)])
    assert not stopped.finished
    resumed = train(tmp_path / "run", recipe)
    assert resumed.finished
    assert difference(weights(tmp_path / "whole"), weights(tmp_path / "run")) == 0.0
    guided = next(term for term in recipe.objectives if isinstance(term, ExplanationGuidedLoss))
    assert guided.memory.size == 0
    entries = [entry for entry in resumed.history if "loss" in entry]
    assert all(entry["explanation_guided"] > 0 for entry in entries)
