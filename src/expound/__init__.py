"""expound: train transformers whose explanations are good, attribute their outputs, and measure the attributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expound.lazy import lazy

# nothing is imported here: `import expound` takes milliseconds, torch is imported when a name needs it
if TYPE_CHECKING:
    from expound import data, explainers, metrics, models, objectives, recipes, rewards
    from expound.data import list_datasets, load_data
    from expound.errors import ExpoundError
    from expound.evaluation.compare.compare import compare
    from expound.evaluation.compare.comparison import Comparison
    from expound.evaluation.corpus.engines import explain_corpus
    from expound.evaluation.corpus.job import CorpusJob
    from expound.evaluation.corpus.summary import summarise
    from expound.explainers import Explainer, ModelReport, attribute, check, explainer, list_methods
    from expound.metrics import Metric, list_metrics, metric
    from expound.models import Batch, ExplainedModel, load
    from expound.objectives import Constraint, Objective, list_objectives, objective
    from expound.recipes import Recipe, list_recipes, recipe
    from expound.recipes.train import train
    from expound.reports.explanations import Explanation, Explanations
    from expound.training import TrainResult
    from expound.training.terms import ExplanationTerms
    from expound.training.with_objectives import with_objectives
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "Batch",
    "Comparison",
    "Constraint",
    "CorpusJob",
    "ExplainedModel",
    "Explainer",
    "Explanation",
    "ExplanationTerms",
    "Explanations",
    "ExpoundError",
    "Metric",
    "ModelReport",
    "Objective",
    "Recipe",
    "TrainResult",
    "attribute",
    "check",
    "compare",
    "data",
    "explain_corpus",
    "explainer",
    "explainers",
    "list_datasets",
    "list_methods",
    "list_metrics",
    "list_objectives",
    "list_recipes",
    "load",
    "load_data",
    "metric",
    "metrics",
    "models",
    "objective",
    "objectives",
    "recipe",
    "recipes",
    "rewards",
    "summarise",
    "train",
    "with_objectives",
]
