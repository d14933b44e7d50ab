"""Contract tests that an outsider's explainer or metric inherits with one fixture (needs pytest)."""

from exegete.testing.explainers import ExplainerContract
from exegete.testing.metrics import MetricContract

__all__ = ["ExplainerContract", "MetricContract"]
