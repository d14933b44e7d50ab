"""A bound on an objective, kept by a Lagrange multiplier."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models import Batch, Capture, ExplainedModel
from expound.objectives.base import AdaptiveObjective, Objective, TrainingStep
from expound.objectives.rationale_alignment import RationaleAlignment

logger = logging.getLogger(__name__)
DEFAULT_OBJECTIVE = RationaleAlignment()
TOLERANCE = 1.1


class Multiplier(nn.Module):
    """The Lagrange multiplier α ≥ 0, the state of its RMSprop, and the first value of its term, in buffers."""

    value: Tensor
    square: Tensor
    first: Tensor

    def __init__(self, start: float = 1.0, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", torch.tensor(float(start)))
        self.register_buffer("square", torch.tensor(0.0))
        self.register_buffer("first", torch.tensor(math.nan))

    def ascend(self, slope: float, rate: float) -> None:
        """Take one step of gradient ascent along ∂L/∂α, projected back to α ≥ 0."""
        self.square.mul_(self.decay).add_((1 - self.decay) * slope**2)
        self.value.add_(rate * slope / (self.square.sqrt() + 1e-8)).clamp_(min=0)


# Not frozen: a constraint has the name of its objective, under which the term is logged.
@dataclass(eq=False)
class Constraint(AdaptiveObjective):
    """An objective L under the constraint L ≤ bound (Ferreira et al. 2024, eq. 2 and appendix H).

    Training minimizes over the model, and maximizes over α ≥ 0, the other objectives + α·(L − bound). The objective's
    weight is α. After every optimizer step α takes a step of its own along the violation L − bound. If the number of
    steps is known, its learning rate is linear, with a warm-up over the first tenth of all steps; else it is constant.
    A bound that holds before training, and so constrains nothing, is reported.

    Example:
        guidance = expound.objective("rationale_alignment", explainer="attention_last")
        terms = expound.ExplanationTerms(explained, [expound.Constraint(guidance, relative_bound=0.7)])

    Args:
        objective: the bounded objective; its own weight is not used.
        bound: the bound on training data. Default: `relative_bound` times the term of the first training step.
        dev_bound: an epoch is feasible if its dev term is below 1.1 times this bound. Default: the training bound.
        relative_bound: the bound as a multiple of the term before training.
        multiplier_learning_rate: peak learning rate of α.
        multiplier_decay: smoothing constant of α's RMSprop. A run with k times fewer steps and a k times higher rate
            needs decay^k to average over the same data.
    """

    objective: Objective = DEFAULT_OBJECTIVE
    bound: float | None = None
    dev_bound: float | None = None
    relative_bound: float = 0.8
    multiplier_learning_rate: float = 0.05
    multiplier_decay: float = 0.99
    multiplier: Multiplier = field(default_factory=Multiplier, repr=False)
    equation: ClassVar[str] = r"\alpha \, (L - b), \; \alpha \ge 0 \text{ rises while } L > b"
    use: ClassVar[str] = "You know how low a term should come, and not the weight that brings it there."
    remedy: ClassVar[str] = "Lower the bound (--relative-bound), or raise --multiplier-learning-rate"
    avoid: ClassVar[str] = "The bound cannot be reached: the multiplier then grows until the task is forgotten."
    name = "constraint"

    def __post_init__(self) -> None:
        bounds = [each for each in (self.bound, self.dev_bound, self.relative_bound) if each is not None]
        if min(bounds) <= 0:
            raise ExpoundError(f"expected bounds above 0, got {', '.join(map(str, bounds))}")
        if self.multiplier_learning_rate <= 0:
            raise ExpoundError(f"expected a multiplier_learning_rate above 0, got {self.multiplier_learning_rate}")
        if isinstance(self.objective, AdaptiveObjective) or self.objective.learned is not None:
            raise ExpoundError(f"{self.objective.name} learns something itself: it cannot be bounded")
        if not 0 <= self.multiplier_decay < 1:
            raise ExpoundError(f"expected a multiplier_decay from 0 to below 1, got {self.multiplier_decay}")
        self.name = self.objective.name
        self.multiplier.decay = self.multiplier_decay

    @property
    def bound_in_use(self) -> float:
        """The bound on training data; NaN for a relative bound before the first step."""
        return self.relative_bound * float(self.multiplier.first) if self.bound is None else self.bound

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
    def batch_fraction(self) -> float:
        """The fraction of a batch that the bounded objective is estimated on."""
        return self.objective.batch_fraction

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the constraint, with the same multiplier, on the prepared objective."""
        return replace(self, objective=self.objective.prepare(model))

    @property
    def learned(self) -> nn.Module:
        """The multiplier α and the state of its optimizer."""
        return self.multiplier

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the objective and of the constraint."""
        names = ("bound", "dev_bound", "multiplier_learning_rate", "multiplier_decay")
        own = {name: getattr(self, name) for name in names}
        if self.bound is None:
            own["relative_bound"] = self.relative_bound
        return {**self.objective.params, **own}

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

    def adapt(self, value: float, number: int, total: int | None) -> None:
        """Step α along the violation of the last optimizer step."""
        if self.multiplier.first.isnan():
            self.multiplier.first.fill_(value)
            if value <= self.bound_in_use:
                logger.warning(
                    "the bound %.4g constrains nothing: %s is %.4g before training. Set a lower one, such as %.4g",
                    self.bound_in_use, self.name, value, 0.8 * value,
                )  # fmt: skip
        factor = 1.0 if total is None else linear_schedule(number, total)
        self.multiplier.ascend(value - self.bound_in_use, self.multiplier_learning_rate * factor)

    def is_feasible(self, value: float) -> bool:
        """Return whether a dev term is low enough."""
        return value < TOLERANCE * (self.dev_bound or self.bound_in_use)


def linear_schedule(number: int, total: int, warmup: float = 0.1) -> float:
    """Return the learning rate's factor at step `number` (from 0): linear warm-up, then linear decay to 0."""
    rising = math.ceil(warmup * total)
    if number < rising:
        return number / rising
    return max(0.0, (total - number) / max(1, total - rising))
