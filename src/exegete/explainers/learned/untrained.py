"""A learned explainer before any training, made for whatever model it is asked to explain."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.data.specs import BOOLEANS
from exegete.errors import ExegeteError, unknown
from exegete.explainers.base import Explainer, SinglePass
from exegete.explainers.learned.learned import Learned
from exegete.models import Batch, Capture, ExplainedModel, Outputs

SIZES = ("n_layers", "n_heads", "head_dim", "width")


@dataclass(frozen=True)
class Untrained(SinglePass):
    """`ID?untrained`: the explainer of this id with all coefficients alike, what training for a purpose has to beat.

    Args:
        kind: a learned explainer.
        options: of its class, as values or as text; the sizes are the explained model's.
    """

    kind: type[Learned]
    options: Mapping[str, Any] = field(default_factory=dict)
    card: ClassVar = MethodCard(name="untrained", family="learned", differentiable=True, cost="F")

    @classmethod
    def of(cls, kind: type[Explainer], options: Mapping[str, Any]) -> Untrained:
        """The untrained explainer of a learned one's class. Raises ExegeteError for one that has to be trained."""
        if not issubclass(kind, Learned):
            name = kind.card.name
            raise ExegeteError(f"{name} says nothing before it is trained: give the folder of one, as {name}:PATH")
        return cls(kind, options)

    def __post_init__(self) -> None:
        valid = inspect.signature(self.kind).parameters
        names = [name for name in valid if name not in SIZES]
        for name in self.options:
            if name not in names:
                raise unknown(f"parameter of {self.name}?untrained", name, names)
        values = {name: BOOLEANS.get(value, value) for name, value in self.options.items()}
        if not all(isinstance(values[name], bool) for name in values if isinstance(valid[name].default, bool)):
            raise ExegeteError(f"{self.name}?untrained: expected true or false, got {dict(self.options)}")
        object.__setattr__(self, "options", values)
        _ = self._smallest

    @property
    def _smallest(self) -> Learned:
        """One of its kind, of sizes 1."""
        sizes: dict[str, Any] = {name: 1 for name in SIZES if name in inspect.signature(self.kind).parameters}
        return self.kind(**sizes, **self.options)

    @property
    def name(self) -> str:
        """The id of the explainer that it is an untrained one of."""
        return self.kind.card.name

    @property
    def signed(self) -> bool:
        """As its kind."""
        return self.kind.card.signed

    @property
    def params(self) -> dict[str, Any]:
        """The options, and that nothing was trained."""
        return {"untrained": True, **self.options}

    @property
    def capture(self) -> Capture:
        """The quantities that its kind looks at."""
        return self._smallest.capture

    def made_for(self, model: ExplainedModel) -> Learned:
        """The explainer itself for a model."""
        return self.kind.untrained(model, **self.options).to(model.device)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The scores [B, L] of the explainer for this model."""
        return self.made_for(model).scores_from_outputs(model, batch, outputs, target, keep_graph=keep_graph)
