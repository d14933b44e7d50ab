"""Contract tests that the tests of a new part inherit with one fixture, a small model and examples (needs pytest)."""

from expound.testing.explainers import ExplainerContract
from expound.testing.metrics import MetricContract
from expound.testing.models import make_examples, random_language_model, random_model
from expound.testing.no_side_effects import NoSideEffectsContract
from expound.testing.objectives import ObjectiveContract
from expound.testing.readers import ReaderContract
from expound.testing.recipes import RecipeContract

__all__ = [
    "ExplainerContract", "MetricContract", "NoSideEffectsContract", "ObjectiveContract",
    "ReaderContract", "RecipeContract", "make_examples", "random_language_model",
    "random_model",
]  # fmt: skip
