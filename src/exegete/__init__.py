"""exegete: language models that explain themselves well, and the numbers that prove it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exegete.data import load_data
    from exegete.errors import ExegeteError
    from exegete.explainers import Explainer, attribute, explainer, methods
    from exegete.metrics import Metric, metric
    from exegete.models import Batch, ExplainedModel, load
    from exegete.reports.attributions import Attribution, Attributions
    from exegete.studies import Comparison, compare

_ROOMS = {
    "exegete.data": ("load_data",),
    "exegete.errors": ("ExegeteError",),
    "exegete.explainers": ("Explainer", "attribute", "explainer", "methods"),
    "exegete.metrics": ("Metric", "metric"),
    "exegete.models": ("Batch", "ExplainedModel", "load"),
    "exegete.reports.attributions": ("Attribution", "Attributions"),
    "exegete.studies": ("Comparison", "compare"),
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Attribution",
    "Attributions",
    "Batch",
    "Comparison",
    "ExegeteError",
    "ExplainedModel",
    "Explainer",
    "Metric",
    "attribute",
    "compare",
    "explainer",
    "load",
    "load_data",
    "methods",
    "metric",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `exegete --help` does not wait for torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'exegete' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
