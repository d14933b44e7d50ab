"""The interface of the terms of a training loss, and the step that they are computed on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from exegete.models import Batch, Capture, ExplainedModel, Outputs


@dataclass(frozen=True, slots=True)
class StepContext:
    """When and where a step happens; all that randomness inside it may depend on.

    `number`: optimizer steps before it; `part`: which batch of an accumulated step (in evaluation: which batch).
    `epoch`: passes over the data before it; what is drawn does not depend on it.
    """

    seed: int = 0
    number: int = 0
    rank: int = 0
    part: int = 0
    training: bool = True
    epoch: int = 0

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator: the same context and purpose draw the same numbers, also after a resumed run."""
        place = {name: value for name, value in asdict(self).items() if name != "epoch"}
        key = f"{sorted(place.items())} {purpose}".encode()
        seed = int.from_bytes(blake2b(key, digest_size=8).digest()) >> 1
        return torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True)
class TrainingStep:
    """One batch on its way through the model; `outputs` is the pass that all objectives share.

    `task_losses` [B]: each example's loss against its label, with its graph; `has_label` [B] bool: the examples that
    have a usable label (an answer that was cut off has none).
    """

    model: ExplainedModel
    batch: Batch
    outputs: Outputs
    task_losses: Tensor
    has_label: Tensor
    context: StepContext = StepContext()

    @property
    def labels(self) -> Tensor | None:
        """[B] or [B, 2], see `Batch.labels`."""
        return self.batch.labels

    @property
    def rationale(self) -> Tensor | None:
        """[B, L] bool, see `Batch.rationale`."""
        return self.batch.rationale_mask

    @property
    def embeddings(self) -> Tensor | None:
        """The input embeddings [B, L, d] the pass ran on; there when an objective has `needs_embeddings`."""
        return self.outputs.embeddings

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for one purpose in this step, on the batch's device."""
        return self.context.generator(purpose, self.batch.device)


class Objective(ABC):
    """One term of a training loss; subclasses are frozen dataclasses with a `weight`, registered by `name`.

    An objective keeps no state and no generator: what it learns is a module it shows as `learned`, what it draws comes
    from `step.generator`. It returns its term unweighted. `exact_gradient`: whether its gradient is its derivative, and
    no estimate that leaves parts of it still. `separable`: whether a batch's term is the mean of its examples', and no
    comparison of them, or a matter of noise drawn for all of them.
    """

    name: ClassVar[str]
    exact_gradient: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    @property
    @abstractmethod
    def weight(self) -> float:
        """The factor of the term in the sum."""

    @property
    def needs_rationale(self) -> bool:
        """Whether it teaches nothing where no row of the data has a rationale."""
        return False

    @property
    def share(self) -> float:
        """The share, above 0, of a training batch's examples that the term is estimated on: random ones each time.

        Terms with one share see the same examples, in a pass of their own; in evaluation all see everything.
        """
        return 1.0

    @property
    def capture(self) -> Capture:
        """The quantities that the shared forward pass has to record for it."""
        return Capture()

    @property
    def needs_embeddings(self) -> bool:
        """Whether the shared pass has to run on input embeddings that a gradient can be taken at."""
        return False

    def prepare(self, model: ExplainedModel) -> Self:
        """The objective for a training that begins with this model; for those that look back at how it was."""
        return self

    @property
    def learned(self) -> nn.Module | None:
        """Parameters of its own, trained and saved with the model; a property that gives the same module each time."""
        return None

    @property
    def companion(self) -> nn.Module | None:
        """A module that the objective trains in its own way: saved with the model, its weights want no gradient."""
        return None

    @property
    def lr_multiplier(self) -> float:
        """How many times the model's learning rate `learned` has."""
        return 1.0

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters by name, as plain values, for the record of a run."""
        return {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}

    @abstractmethod
    def __call__(self, step: TrainingStep) -> Tensor:
        """The term, a scalar: a mean over the batch."""

    def size(self, batch: Batch) -> Tensor:
        """The number [] of equal parts that the mean over this batch is of; by default its examples.

        Means over the parts of an accumulated step, over processes and over a dataset are weighted by it, so that they
        are what one large batch would give.
        """
        return torch.tensor(float(len(batch)), device=batch.device)


class LabelledObjective(Objective):
    """An objective that is a mean over the examples with a usable label, see `has_usable_label`."""

    def size(self, batch: Batch) -> Tensor:
        """The number of examples with a usable label."""
        return has_usable_label(batch).sum().float()

    @staticmethod
    def mean_over_labelled(step: TrainingStep, values: Tensor) -> Tensor:
        """Of values [B] over the examples that count; 0 where none does."""
        return (values * step.has_label).sum() / step.has_label.sum().clamp(min=1)


def has_usable_label(batch: Batch) -> Tensor:
    """[B] bool: whose label can be learned from; an answer that was cut off can't."""
    if batch.labels is None or batch.labels.ndim == 1:
        return torch.ones(len(batch), dtype=torch.bool, device=batch.device)
    return (batch.labels >= 0).all(1)


class AdaptiveObjective(Objective):
    """An objective that changes after every optimizer step without a gradient of the loss.

    What changes lies in buffers of `learned`, so that checkpoints hold it.
    """

    @abstractmethod
    def adapt(self, value: float, number: int, total: int) -> None:
        """Called after the backward pass of step `number` (from 0) of `total`.

        `value`: the term over the whole step, all of its parts and processes.
        """

    @property
    @abstractmethod
    def logged_values(self) -> dict[str, float]:
        """The figures that are worth logging, by name."""
