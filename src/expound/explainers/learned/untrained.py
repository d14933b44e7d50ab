"""A learned explainer before any training, created for each model that it explains."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from expound.data.cards import MethodCard
from expound.data.registry import BOOLEANS
from expound.errors import ExpoundError, check_choice
from expound.explainers.base import Explainer, SinglePass
from expound.explainers.learned.base import LearnedExplainer
from expound.models import Batch, Capture, ExplainedModel, Outputs

SIZES = ("n_layers", "n_heads", "head_dim", "width")


@dataclass(frozen=True)
class UntrainedExplainer(SinglePass):
    """The method of the spec `ID?untrained`: a learned explainer with equal coefficients, a baseline for training.

    Args:
        explainer_class: the class of the learned explainer.
        options: arguments of the class, as values or text; sizes are those of the explained model.
    """

    explainer_class: type[LearnedExplainer]
    options: Mapping[str, Any] = field(default_factory=dict)
    card: ClassVar = MethodCard(name="untrained", family="learned", differentiable=True, cost="F")

    @classmethod
    def from_options(cls, explainer_class: type[Explainer], options: Mapping[str, Any]) -> UntrainedExplainer:
        """Return the untrained explainer of a class. Raises ExpoundError for a class that must be trained first."""
        if not issubclass(explainer_class, LearnedExplainer):
            name = explainer_class.card.name
            raise ExpoundError(f"{name} must be trained before it explains: give the folder of one, as {name}:PATH")
        return cls(explainer_class, options)

    def __post_init__(self) -> None:
        valid = inspect.signature(self.explainer_class).parameters
        names = [name for name in valid if name not in SIZES]
        for name in self.options:
            check_choice(f"parameter of {self.name}?untrained", name, names)
        values = {name: BOOLEANS.get(value, value) for name, value in self.options.items()}
        if not all(isinstance(values[name], bool) for name in values if isinstance(valid[name].default, bool)):
            raise ExpoundError(f"{self.name}?untrained: expected true or false, got {dict(self.options)}")
        object.__setattr__(self, "options", values)
        # Invalid option values raise here, not at the first explanation.
        _ = self._template

    @property
    def _template(self) -> LearnedExplainer:
        """An instance with all sizes 1, for what does not depend on sizes."""
        parameters = inspect.signature(self.explainer_class).parameters
        sizes: dict[str, Any] = {name: 1 for name in SIZES if name in parameters}
        return self.explainer_class(**sizes, **self.options)

    @property
    def name(self) -> str:
        """The id of the learned explainer."""
        return self.explainer_class.card.name

    @property
    def signed(self) -> bool:
        """Whether negative scores mean evidence against the target."""
        return self.explainer_class.card.signed

    @property
    def params(self) -> dict[str, Any]:
        """The options, and `untrained`."""
        return {"untrained": True, **self.options}

    @property
    def capture(self) -> Capture:
        """The quantities that the learned explainer needs."""
        return self._template.capture

    def for_model(self, model: ExplainedModel) -> LearnedExplainer:
        """Return the untrained learned explainer for a model, on its device."""
        return self.explainer_class.for_model(model, **self.options).to(model.device)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """Return the scores [B, L] of the untrained explainer for this model."""
        return self.for_model(model).scores_from_outputs(model, batch, outputs, target, keep_graph=keep_graph)
