"""Attribution methods. A new one is a file with its class and a line in `registry.EXPLAINERS`."""

from exegete.explainers.attribute import attribute
from exegete.explainers.base import Explainer, Explanation, SinglePass
from exegete.explainers.registry import EXPLAINERS, explainer, methods

__all__ = ["EXPLAINERS", "Explainer", "Explanation", "SinglePass", "attribute", "explainer", "methods"]
