"""The interface of the terms of a training loss, their training step, and the base of terms on attributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from expound.data.registry import check_choices
from expound.errors import ExpoundError
from expound.explainers import Explainer, SinglePass
from expound.explainers.base import describe_explainer
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.batch import to_float32


@dataclass(frozen=True, slots=True)
class StepContext:
    """The position of a step in a training run; all randomness inside the step depends on it alone.

    `number`: optimizer steps before this one. `part`: the index of the batch within an accumulated step, in
    evaluation the index of the batch. `rank`: the process. `epoch`: passes over the data before this one; random
    numbers do not depend on it.
    """

    seed: int = 0
    number: int = 0
    rank: int = 0
    part: int = 0
    training: bool = True
    epoch: int = 0

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a new generator that draws the same numbers for the same context and purpose.

        A resumed run therefore draws what the uninterrupted run would have drawn.
        """
        # field names are part of the hash: renaming a field would change every random number of a run
        place = {name: value for name, value in asdict(self).items() if name != "epoch"}
        key = f"{sorted(place.items())} {purpose}".encode()
        # torch takes seeds of 63 bits; Python's own hash() differs from process to process
        seed = int.from_bytes(blake2b(key, digest_size=8).digest()) >> 1
        return torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True)
class TrainingStep:
    """One batch in training or evaluation: what every objective of the step is computed from.

    `outputs`: the forward pass that all objectives share. `own_loss` []: the loss that the user's own code computed of
    this pass, if it did.
    """

    model: ExplainedModel
    batch: Batch
    outputs: Outputs
    context: StepContext = StepContext()
    own_loss: Tensor | None = None

    @cached_property
    def task_losses(self) -> Tensor:
        """The loss of each example against its label [B], with its graph, see `task_losses`."""
        # Computed at first use, since batches without labels serve the terms that need none.
        return task_losses(self.model, self.batch, self.outputs.logits)[0]

    @property
    def has_label(self) -> Tensor:
        """[B] bool The examples with a usable label, see `has_usable_label`."""
        return has_usable_label(self.batch)

    @property
    def labels(self) -> Tensor | None:
        """The labels [B] or [B, 2], see `Batch.labels`."""
        return self.batch.labels

    @property
    def embeddings(self) -> Tensor | None:
        """The input embeddings [B, L, d] of the shared pass; None unless an objective captures them."""
        return self.outputs.embeddings

    def require_embeddings(self, name: str) -> Tensor:
        """Return the embeddings [B, L, d] that the objective `name` takes a gradient at.

        Raises:
            ExpoundError: the pass did not run on input embeddings.
        """
        if self.embeddings is None:
            raise ExpoundError(
                f"{name} takes a gradient at the input embeddings: run the pass on them, "
                "model(batch, model.embed(batch), capture), or let expound.ExplanationTerms run it"
            )
        return self.embeddings

    def generator(self, purpose: str) -> torch.Generator:
        """Return a generator for one purpose in this step, on the device of the batch."""
        return self.context.generator(purpose, self.batch.device)


class Objective(ABC):
    """One term of a training loss; subclasses are frozen dataclasses with a `weight`, registered by `name`.

    An objective keeps no state: its trainable parameters are in the module `learned`, and its random numbers come from
    `step.generator`. Calling it returns the unweighted term.

    `exact_gradient`: whether the gradient of the term is its exact derivative (False if parts of it are detached).
    `separable`: whether the term of a batch is the mean of the terms of its examples (False if it compares examples, or
    draws noise for the whole batch). `equation`: the term in LaTeX. `use`, `avoid`: when to use it and when not; these
    three are shown on its page of the documentation. `remedy`: what to try after a run that the term did not move.
    """

    exact_gradient: ClassVar[bool] = True
    separable: ClassVar[bool] = True
    equation: ClassVar[str] = ""
    use: ClassVar[str] = ""
    avoid: ClassVar[str] = ""
    remedy: ClassVar[str] = "Raise its weight, or train for more steps"

    def __post_init__(self) -> None:
        check_choices(self)
        if self.weight < 0:
            raise ExpoundError(f"the weight of {self.name} is at least 0, got {self.weight}")

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the term in logs; a class variable of the parts in the registry, whose id it is."""

    @property
    @abstractmethod
    def weight(self) -> float:
        """The factor of the term in the total loss."""

    @property
    def needs_rationale(self) -> bool:
        """Whether the term needs rationales in the data; a recipe refuses data without any."""
        return False

    @property
    def batch_fraction(self) -> float:
        """The fraction, above 0, of a training batch's examples that the term is estimated on, drawn in each step.

        Objectives with the same fraction below 1 see the same examples, in a separate pass. Evaluation does not use it.
        """
        return 1.0

    @property
    def capture(self) -> Capture:
        """The quantities that the shared forward pass has to record for this objective."""
        return Capture()

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the objective for a training run that starts from this model; most objectives return themselves."""
        return self

    @property
    def learned(self) -> nn.Module | None:
        """A module whose parameters are trained and saved with the model, always the same one; None by default."""
        return None

    @property
    def companion(self) -> nn.Module | None:
        """A module that the objective trains by itself: it is saved with the model and gets no gradient of the loss."""
        return None

    @property
    def lr_multiplier(self) -> float | None:
        """The learning rate of `learned`, without weight decay, as a multiple of the model's; None: as the model's."""
        return None

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by name, as plain values, for the record of a run; fields outside of `repr` are none."""
        own: Any = self
        known = fields(own) if is_dataclass(own) else ()
        return {each.name: getattr(own, each.name) for each in known if each.repr}

    @abstractmethod
    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the unweighted term, a scalar: a mean over the batch."""

    def size(self, batch: Batch) -> Tensor:
        """Return the number [] of items that the mean over this batch is taken of; by default its examples."""
        # means over accumulated parts, processes and datasets are weighted by it: the result is that of one large batch
        return torch.tensor(float(len(batch)), device=batch.device)


class LabeledObjective(Objective):
    """An objective that is a mean over the examples with a usable label, see `has_usable_label`."""

    def size(self, batch: Batch) -> Tensor:
        """Return the number [] of examples with a usable label."""
        return has_usable_label(batch).sum().float()

    @staticmethod
    def mean_over_labeled(step: TrainingStep, values: Tensor) -> Tensor:
        """Return the mean of values [B] over the examples with a usable label; 0 if the batch has no such example."""
        return (values * step.has_label).sum() / step.has_label.sum().clamp(min=1)


@dataclass(frozen=True)
class CrossEntropy(LabeledObjective):
    """The task's loss (see `task_losses`), mean over the examples; 0 if no example has a usable label."""

    weight: float = 1.0
    name: ClassVar[str] = "cross_entropy"
    equation: ClassVar[str] = r"-\frac{1}{B} \sum_b \log p(y_b \mid x_b)"
    use: ClassVar[str] = "Always, unless a bound on the explanation alone is wanted (`er_bound`)."

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean loss over the examples with a usable label, a scalar."""
        return self.mean_over_labeled(step, step.task_losses)


def has_usable_label(batch: Batch) -> Tensor:
    """Return which examples have a label to learn from [B] bool; a span outside the truncated text is no label."""
    if batch.labels is None or batch.labels.ndim == 1:
        return torch.ones(len(batch), dtype=torch.bool, device=batch.device)
    # spans outside the text that the model sees are encoded as -1
    return (batch.labels >= 0).all(1)


def task_losses(model: ExplainedModel, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each example [B], in float32 or higher, and which examples have a usable label [B] bool.

    Classification: cross-entropy. Several labels: mean binary cross-entropy. Regression: squared error. Spans: mean of
    the cross-entropies of start and end; an answer outside the truncated text has no usable label and loss 0. Generated
    text: mean −log p of the response's tokens.

    Raises:
        ExpoundError: the batch has no labels.
    """
    return model.task.losses(logits, batch), has_usable_label(batch)


class AdaptiveObjective(Objective):
    """An objective that changes after every optimizer step without a gradient of the loss.

    What changes is in buffers of `learned`, so that checkpoints contain it.
    """

    @abstractmethod
    def adapt(self, value: float, number: int, total: int | None) -> None:
        """Update the objective after the backward pass of step `number` (from 0) of `total`, if that is known.

        `value`: the term over the whole step, all of its parts and processes.
        """

    @property
    @abstractmethod
    def logged_values(self) -> dict[str, float]:
        """The values to log, by name."""


class AttributionObjective(Objective):
    """An objective on attributions of the model that is trained.

    A `SinglePass` explainer uses the step's own forward pass, with its dropout; other explainers run their own passes,
    without dropout.
    """

    @property
    @abstractmethod
    def explainer(self) -> Explainer:
        """The explainer; differentiable."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.explainer.differentiable:
            raise ExpoundError(f"{self.explainer.name} cannot guide a model: it is not differentiable")

    @property
    def capture(self) -> Capture:
        """The quantities that the explainer needs from the shared pass; empty if it runs its own passes."""
        if not isinstance(self.explainer, SinglePass):
            return Capture()
        # the loss differentiates the attribution: a gradient in it is differentiated a second time
        has_gradient = self.explainer.needs_gradient
        return replace(self.explainer.capture, embeddings=has_gradient, differentiable_twice=has_gradient)

    @property
    def learned(self) -> nn.Module | None:
        """The explainer, if it has parameters."""
        if isinstance(self.explainer, nn.Module):
            return self.explainer
        return None

    @property
    def params(self) -> dict[str, Any]:
        """The objective's parameters, with the explainer's id and parameters."""
        return super().params | {"explainer": describe_explainer(self.explainer)}

    def compute_attribution(self, step: TrainingStep, target: Tensor) -> Tensor:
        """Return scores [B, L] for a target, special tokens included, in float32 or higher; arbitrary at padding."""
        # no graph in evaluation: it would keep the activations of a whole split in memory
        keep_graph = step.context.training and torch.is_grad_enabled()
        if self.capture.embeddings:
            step.require_embeddings(self.name)
        if isinstance(self.explainer, SinglePass):
            # scores without a gradient in them keep the graph of the step's own pass
            with torch.set_grad_enabled(keep_graph) if self.capture.embeddings else nullcontext():
                (explanation,) = self.explainer.compute(step.model, step.batch, [target], step.outputs)
        else:
            with torch.set_grad_enabled(keep_graph):
                explanation = self.explainer.explain(step.model, step.batch, target, special_tokens=True)
        return to_float32(explanation.scores)
