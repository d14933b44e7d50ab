"""Metrics by which an explainer chooses among maps of its own, found through a function that is given from above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from expound.models import Batch, ExplainedModel

# `import expound` imports this module, which therefore imports nothing heavy.


class MapMetric(Protocol):
    """The part of the interface of a metric that explainers use."""

    compares_examples: ClassVar[bool]

    @property
    def name(self) -> str:
        """The key of the metric's values in the result of `evaluate`."""

    @property
    def card(self) -> Any:
        """The metric's card, which says whether higher is better."""

    def evaluate(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[str, Tensor]:
        """Return the values [B] of attributions [B, L] by name."""


_loaders: list[Callable[[str], MapMetric]] = []


def set_metric_loader(load: Callable[[str], MapMetric]) -> None:
    """Set the function that returns the metric of a spec."""
    # The package of metrics imports explainers, which therefore cannot import its registry.
    _loaders[:] = [load]


def load_metric(spec: str) -> MapMetric:
    """Return the metric of a spec."""
    return _loaders[0](spec)
