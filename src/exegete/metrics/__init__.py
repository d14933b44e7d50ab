"""Metrics that judge attributions. A new metric is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.metrics.base import Metric
    from exegete.metrics.cost import Measurement, measure_cost
    from exegete.metrics.gain import average_relative_gain
    from exegete.metrics.presets import PRESETS
    from exegete.metrics.ranking import top_fraction
    from exegete.metrics.registry import METRICS, cards, metric, metrics, preset
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "METRICS",
    "PRESETS",
    "Measurement",
    "Metric",
    "average_relative_gain",
    "cards",
    "measure_cost",
    "metric",
    "metrics",
    "preset",
    "top_fraction",
]
