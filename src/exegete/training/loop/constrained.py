"""Training with an objective that a Lagrange multiplier keeps below a bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from exegete.errors import ExegeteError
from exegete.models import Batch, Capture
from exegete.objectives import AdaptiveObjective, CrossEntropy, Objective, TrainingStep
from exegete.training.loop.trainer import ObjectiveTrainer

TOLERANCE = 1.1


class Multiplier(nn.Module):
    """The Lagrange multiplier α ≥ 0 and the state of its RMSprop optimizer, in buffers."""

    value: Tensor
    square: Tensor

    def __init__(self, start: float = 1.0, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", torch.tensor(float(start)))
        self.register_buffer("square", torch.tensor(0.0))

    def ascend(self, slope: float, rate: float) -> None:
        """Take one step of gradient ascent along ∂L/∂α, projected back to α ≥ 0."""
        self.square.mul_(self.decay).add_((1 - self.decay) * slope**2)
        self.value.add_(rate * slope / (self.square.sqrt() + 1e-8)).clamp_(min=0)


@dataclass(frozen=True)
class ConstrainedObjective(AdaptiveObjective):
    """An objective L under the constraint L ≤ `bound` (Ferreira et al. 2024, eq. 2 and appendix H).

    Training minimises over the model, and maximises over α ≥ 0, the other objectives + α·(L − bound). The objective's
    weight is α. After every optimizer step α takes a step of its own along the violation L − bound, with a linear
    learning rate that warms up over the first tenth of all steps.

    Args:
        objective: the bounded objective; its own weight is not used.
        bound: the bound on training data.
        dev_bound: an epoch is feasible if its dev term is below 1.1 times this bound. Default: `bound`.
        learning_rate: peak learning rate of α.
        decay: smoothing constant of α's RMSprop. A run with k times fewer steps and a k times higher rate needs
            decay^k to average over the same data.
    """

    objective: Objective
    bound: float
    dev_bound: float | None = None
    learning_rate: float = 0.05
    decay: float = 0.99
    multiplier: Multiplier = field(default_factory=Multiplier, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.bound <= 0 or (self.dev_bound is not None and self.dev_bound <= 0):
            raise ExegeteError(f"expected bounds above 0, got {self.bound} and {self.dev_bound}")
        if self.learning_rate <= 0:
            raise ExegeteError(f"expected a learning rate of the multiplier above 0, got {self.learning_rate}")
        if isinstance(self.objective, AdaptiveObjective) or self.objective.learned is not None:
            raise ExegeteError(f"{self.objective.name} learns something itself: it cannot be bounded")
        if not 0 <= self.decay < 1:
            raise ExegeteError(f"the decay of the multiplier's RMSprop is from 0 to below 1, got {self.decay}")
        # The term is logged under the name of the bounded objective; `name` is a class variable elsewhere.
        object.__setattr__(self, "name", self.objective.name)
        self.multiplier.decay = self.decay

    @property
    def weight(self) -> float:
        """The current value of the multiplier α."""
        return float(self.multiplier.value)

    @property
    def needs_rationale(self) -> bool:
        """Whether the bounded objective needs rationales."""
        return self.objective.needs_rationale

    @property
    def capture(self) -> Capture:
        """The parts of the shared pass that the bounded objective needs."""
        return self.objective.capture

    @property
    def needs_embeddings(self) -> bool:
        """Whether the bounded objective needs a pass on input embeddings."""
        return self.objective.needs_embeddings

    @property
    def learned(self) -> nn.Module:
        """The multiplier α and the state of its optimizer."""
        return self.multiplier

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the objective and of the constraint."""
        own = {name: getattr(self, name) for name in ("bound", "dev_bound", "learning_rate", "decay")}
        return {"constrained": own, **self.objective.params}

    @property
    def logged_values(self) -> dict[str, float]:
        """The multiplier α by name, for logging."""
        return {f"{self.objective.name}_multiplier": self.weight}

    def size(self, batch: Batch) -> Tensor:
        """The number [] of equal parts in the bounded objective's mean over this batch."""
        return self.objective.size(batch)

    def __call__(self, step: TrainingStep) -> Tensor:
        """Compute the bounded objective's term, unweighted."""
        # The constant −α·bound has no gradient and is left out of the loss.
        return self.objective(step)

    def adapt(self, value: float, number: int, total: int) -> None:
        """Step α along the violation of the last optimizer step."""
        self.multiplier.ascend(value - self.bound, self.learning_rate * linear_schedule(number, total))

    def is_feasible(self, value: float) -> bool:
        """Return whether a dev term is low enough."""
        return value < TOLERANCE * (self.dev_bound or self.bound)


def linear_schedule(number: int, total: int, warmup: float = 0.1) -> float:
    """Return the learning rate's factor at step `number` (from 0): linear warm-up, then linear decay to 0."""
    rising = math.ceil(warmup * total)
    if number < rising:
        return number / rising
    return max(0.0, (total - number) / max(1, total - rising))


class FeasibleStopping(TrainerCallback):
    """Early stopping by the dev cross-entropy; the first feasible epoch restarts the count with half the patience."""

    # The callback has no state: it counts in the Trainer's history, which a resumed run has, too.

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop training when the evaluations so far have used up the patience."""
        evaluated = [entry for entry in state.log_history if "eval_feasible" in entry]
        pairs = ((bool(entry["eval_feasible"]), entry[f"eval_{CrossEntropy.name}"]) for entry in evaluated)
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
    return waited >= (max(1, patience // 2) if was_feasible else patience)


class ConstrainedTrainer(ObjectiveTrainer):
    """An ObjectiveTrainer whose evaluations say whether all constraints hold.

    `eval_feasible` is 1 or 0. `eval_feasible_cross_entropy` is infinite for an infeasible epoch, so that
    `metric_for_best_model="feasible_cross_entropy"` never chooses one.
    """

    @staticmethod
    def make_stopping_callback(patience: int, threshold: float) -> TrainerCallback:
        """Return a `FeasibleStopping`; the threshold is not used."""
        return FeasibleStopping(patience)

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Add the figures `feasible` (higher is better) and `feasible_cross_entropy` (lower is better)."""
        return super().higher_is_better(task, objectives) | {"feasible": True, "feasible_cross_entropy": False}

    def derive_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return whether the epoch is feasible, and its cross-entropy if so."""
        constraints = [objective for objective in self.module.objectives if isinstance(objective, ConstrainedObjective)]
        feasible = all(each.is_feasible(figures[each.name]) for each in constraints)
        cross_entropy = figures[CrossEntropy.name] if feasible else math.inf
        return {"feasible": float(feasible), "feasible_cross_entropy": cross_entropy}
