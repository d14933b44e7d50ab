"""Early stopping and figures of losses with an objective that a Lagrange multiplier keeps below a bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from expound.objectives import Constraint, CrossEntropy, Objective


class FeasibleStopping(TrainerCallback):
    """Early stopping by the dev cross-entropy; the first feasible epoch restarts the count with half the patience."""

    # The callback has no state: it counts in the Trainer's history, which a resumed run has, too.

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop training when the evaluations so far have used up the patience."""
        pairs = []
        for entry in state.log_history:
            if "eval_feasible" in entry:
                pairs.append((bool(entry["eval_feasible"]), entry[f"eval_{CrossEntropy.name}"]))
        if is_patience_exhausted(pairs, self.patience):
            control.should_training_stop = True


def is_patience_exhausted(evaluations: Iterable[tuple[bool, float]], patience: int) -> bool:
    """Return whether patience has run out after these (feasible, cross-entropy) pairs."""
    best, waited, was_feasible = math.inf, 0, False
    for feasible, value in evaluations:
        is_first = feasible and not was_feasible
        was_feasible = was_feasible or feasible
        # Infeasible epochs often have a lower cross-entropy: the first feasible one becomes the new best.
        if is_first or value < best:
            best, waited = value, 0
        else:
            waited += 1
    if was_feasible:
        patience = max(1, patience // 2)
    return waited >= patience


def derive_feasibility(objectives: Sequence[Objective], figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a loss with constraints, from its evaluation's figures; none for other losses.

    `feasible` is 1 if all constraints hold, else 0. `feasible_cross_entropy` is infinite for an infeasible epoch, so
    that `metric_for_best_model="feasible_cross_entropy"` never chooses one.
    """
    constraints = [each for each in objectives if isinstance(each, Constraint)]
    if not constraints:
        return {}
    feasible = all(each.is_feasible(figures[each.name]) for each in constraints)
    cross_entropy = figures.get(CrossEntropy.name, math.inf) if feasible else math.inf
    return {"feasible": float(feasible), "feasible_cross_entropy": cross_entropy}
