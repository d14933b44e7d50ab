"""Contract tests that an outsider's part inherits with one fixture, and a small model and texts (needs pytest)."""

from exegete.testing.explainers import ExplainerContract
from exegete.testing.families import FamilyContract
from exegete.testing.metrics import MetricContract
from exegete.testing.models import random_model, texts
from exegete.testing.objectives import ObjectiveContract
from exegete.testing.preserving import PreservingContract
from exegete.testing.readers import ReaderContract
from exegete.testing.recipes import RecipeContract

__all__ = [
    "ExplainerContract",
    "FamilyContract",
    "MetricContract",
    "ObjectiveContract",
    "PreservingContract",
    "ReaderContract",
    "RecipeContract",
    "random_model",
    "texts",
]
