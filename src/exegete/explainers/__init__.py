"""Attribution methods. A new one is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.explainers.attribute_examples import attribute
    from exegete.explainers.base import Explainer, Explanation, SinglePass
    from exegete.explainers.registry import EXPLAINERS, explainer, list_methods
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["EXPLAINERS", "Explainer", "Explanation", "SinglePass", "attribute", "explainer", "list_methods"]
