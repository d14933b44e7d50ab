"""Contract tests that an outsider's explainer, metric or objective inherits with one fixture (needs pytest)."""

from exegete.testing.explainers import ExplainerContract
from exegete.testing.metrics import MetricContract
from exegete.testing.objectives import ObjectiveContract

__all__ = ["ExplainerContract", "MetricContract", "ObjectiveContract"]
