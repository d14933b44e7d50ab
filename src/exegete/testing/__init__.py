"""Contract tests that the tests of a new part inherit with one fixture, a small model and examples (needs pytest)."""

from exegete.testing.explainers import ExplainerContract
from exegete.testing.families import FamilyContract
from exegete.testing.metrics import MetricContract
from exegete.testing.models import make_examples, random_model
from exegete.testing.no_side_effects import NoSideEffectsContract
from exegete.testing.objectives import ObjectiveContract
from exegete.testing.readers import ReaderContract
from exegete.testing.recipes import RecipeContract

__all__ = [
    "ExplainerContract", "FamilyContract", "MetricContract", "NoSideEffectsContract", "ObjectiveContract",
    "ReaderContract", "RecipeContract", "make_examples", "random_model"
]  # fmt: skip
