"""An objective kept below a bound by a Lagrangian multiplier, and how the best epoch of such a run is chosen."""

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
    """α ≥ 0, stepped uphill by an RMSprop of its own (ε 1e-8); all of it in buffers."""

    value: Tensor
    square: Tensor

    def __init__(self, start: float = 1.0, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", torch.tensor(float(start)))
        self.register_buffer("square", torch.tensor(0.0))

    def ascend(self, slope: float, rate: float) -> None:
        """One step along ∂L/∂α, then back to 0 from below."""
        self.square.mul_(self.decay).add_((1 - self.decay) * slope**2)
        self.value.add_(rate * slope / (self.square.sqrt() + 1e-8)).clamp_(min=0)


@dataclass(frozen=True)
class ConstrainedObjective(AdaptiveObjective):
    """An objective L that shall stay at or below `bound` (Ferreira et al. 2024, eq. 2 and appendix H).

    min over the model, max over α ≥ 0 of the other objectives + α·(L − bound). Its weight is α; the constant −α·bound
    has no gradient and is left out of the loss. α is stepped by the whole step's violation, not by the model's
    optimizer, at a learning rate of its own: linear, with a warm-up over the first tenth of all steps.

    Args:
        objective: what is bounded; its own weight does not matter.
        bound: b, on training data.
        dev_bound: an epoch is feasible when the dev term is below 1.1 times this one; default: `bound`.
        learning_rate: the peak of α's.
        decay: of α's RMSprop. Where k times fewer steps have a rate k times as high, decay^k keeps its memory as long.
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
            raise ExegeteError(f"the multiplier's learning rate is above 0, got {self.learning_rate}")
        if isinstance(self.objective, AdaptiveObjective) or self.objective.learned is not None:
            raise ExegeteError(f"{self.objective.name} learns something itself: it cannot be bounded")
        if not 0 <= self.decay < 1:
            raise ExegeteError(f"the decay of the multiplier's RMSprop is from 0 to below 1, got {self.decay}")
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
        """α and the state of its optimizer."""
        return self.multiplier

    @property
    def params(self) -> dict[str, Any]:
        """The objective's, and those of the constraint."""
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
        """The bounded objective's term, unweighted and without the bound."""
        return self.objective(step)

    def adapt(self, value: float, number: int, total: int) -> None:
        """α climbs by the violation."""
        self.multiplier.ascend(value - self.bound, self.learning_rate * linear_schedule(number, total))

    def is_feasible(self, value: float) -> bool:
        """Whether a dev term is low enough."""
        return value < TOLERANCE * (self.dev_bound or self.bound)


def linear_schedule(number: int, total: int, warmup: float = 0.1) -> float:
    """The factor of the learning rate at step `number` (from 0): up over a tenth of the steps, then down to 0."""
    rising = math.ceil(warmup * total)
    return number / rising if number < rising else max(0.0, (total - number) / max(1, total - rising))


class FeasibleStopping(TrainerCallback):
    """Stops by the cross-entropy on dev; the first feasible epoch starts the count anew with half the patience.

    It keeps nothing: the evaluations so far stand in the Trainer's history.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops training when the evaluations so far have used up the patience."""
        evaluated = [entry for entry in state.log_history if "eval_feasible" in entry]
        pairs = ((bool(entry["eval_feasible"]), entry[f"eval_{CrossEntropy.name}"]) for entry in evaluated)
        if is_patience_exhausted(pairs, self.patience):
            control.should_training_stop = True


def is_patience_exhausted(evaluations: Iterable[tuple[bool, float]], patience: int) -> bool:
    """Whether patience has run out after these (feasible, cross-entropy) pairs."""
    best, waited, found = math.inf, 0, False
    for feasible, value in evaluations:
        first, found = feasible and not found, found or feasible
        if first or value < best:
            best, waited = value, 0
        else:
            waited += 1
    return waited >= (max(1, patience // 2) if found else patience)


class ConstrainedTrainer(ObjectiveTrainer):
    """An ObjectiveTrainer that says of every evaluation whether all constraints hold.

    `eval_feasible` is 1 or 0, and `eval_feasible_cross_entropy` is infinite where it is 0: with
    `metric_for_best_model="feasible_cross_entropy"` no infeasible epoch is ever chosen.
    """

    @staticmethod
    def make_stopping_callback(patience: int, threshold: float) -> TrainerCallback:
        """See `FeasibleStopping`; the threshold does not matter."""
        return FeasibleStopping(patience)

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Adds the figures `feasible` (higher is better) and `feasible_cross_entropy` (lower is better)."""
        return super().higher_is_better(task, objectives) | {"feasible": True, "feasible_cross_entropy": False}

    def derive_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Feasibility, and the cross-entropy of what is feasible."""
        constraints = [objective for objective in self.module.objectives if isinstance(objective, ConstrainedObjective)]
        feasible = all(each.is_feasible(figures[each.name]) for each in constraints)
        cross_entropy = figures[CrossEntropy.name] if feasible else math.inf
        return {"feasible": float(feasible), "feasible_cross_entropy": cross_entropy}
