"""The base of objectives on attributions, which reuse the step's forward pass if the explainer needs only one pass."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers import Explainer, SinglePass
from expound.explainers.base import describe_explainer
from expound.models import Capture
from expound.models.outputs import to_float32
from expound.objectives.base import Objective, TrainingStep


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
        if not self.explainer.differentiable:
            raise ExpoundError(f"{self.explainer.name} cannot guide a model: it is not differentiable")
        if self.weight < 0:
            raise ExpoundError(f"the weight of {self.name} is at least 0, got {self.weight}")

    @property
    def capture(self) -> Capture:
        """The quantities that the explainer needs from the shared pass; empty if it runs its own passes."""
        if not isinstance(self.explainer, SinglePass):
            return Capture()
        # the loss differentiates the attribution: a gradient in it is differentiated a second time
        return replace(self.explainer.capture, differentiable_twice=self.needs_embeddings)

    @property
    def needs_embeddings(self) -> bool:
        """Whether the explainer takes a gradient in the step's own pass."""
        return isinstance(self.explainer, SinglePass) and self.explainer.passes(1)[1] > 0

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
        if self.needs_embeddings:
            step.require_embeddings(self.name)
        if isinstance(self.explainer, SinglePass):
            # scores without a gradient in them keep the graph of the step's own pass
            with torch.set_grad_enabled(keep_graph) if self.needs_embeddings else nullcontext():
                (explanation,) = self.explainer.compute(step.model, step.batch, [target], step.outputs)
        else:
            with torch.set_grad_enabled(keep_graph):
                explanation = self.explainer.explain(step.model, step.batch, target, special_tokens=True)
        return to_float32(explanation.scores)
