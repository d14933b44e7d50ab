"""The shared part of objectives on attributions, which come from the step's own pass where one is enough."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.explainers import Explainer, SinglePass
from exegete.explainers.base import describe_explainer
from exegete.models import Capture
from exegete.objectives.base import Objective, TrainingStep


class AttributionObjective(Objective):
    """An objective on attributions.

    A method that needs one forward pass takes the step's own, with its dropout; the others make their own passes,
    without dropout.
    """

    @property
    @abstractmethod
    def explainer(self) -> Explainer:
        """The method; differentiable."""

    def __post_init__(self) -> None:
        if not self.explainer.differentiable:
            raise ExegeteError(f"{self.explainer.name} cannot guide a model: it is not differentiable")
        if self.weight < 0:
            raise ExegeteError(f"the weight of {self.name} is at least 0, got {self.weight}")

    @property
    def capture(self) -> Capture:
        """The parts of the shared pass that the explainer needs; none if it runs passes of its own."""
        if not isinstance(self.explainer, SinglePass):
            return Capture()
        return replace(self.explainer.capture, differentiable_twice=self.needs_embeddings)

    @property
    def needs_embeddings(self) -> bool:
        """Where the explainer takes a gradient in the step's own pass."""
        return isinstance(self.explainer, SinglePass) and self.explainer.passes(1)[1] > 0

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters and the explainer's."""
        return super().params | {"explainer": describe_explainer(self.explainer)}

    def compute_attribution(self, step: TrainingStep, target: Tensor) -> Tensor:
        """[B, L] Scores for a target, special tokens included, in float32 at least; anything at padding."""
        keep_graph = step.context.training and torch.is_grad_enabled()
        if isinstance(self.explainer, SinglePass):
            scores = self.explainer.scores_from_outputs(
                step.model, step.batch, step.outputs, target, keep_graph=keep_graph
            )
        else:
            with torch.set_grad_enabled(keep_graph):
                scores = self.explainer.explain(step.model, step.batch, target, special_tokens=True).scores
        return scores.to(torch.promote_types(scores.dtype, torch.float32))
