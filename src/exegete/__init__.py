"""exegete: train transformers whose explanations are good, attribute their outputs, and measure the attributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exegete.lazy import lazy

# nothing is imported here: `import exegete` takes milliseconds, torch is imported when a name needs it
if TYPE_CHECKING:
    from exegete import data, explainers, metrics, models, objectives, recipes, rewards
    from exegete.data import list_datasets, load_data
    from exegete.errors import ExegeteError
    from exegete.explainers import Explainer, ModelReport, attribute, check, explainer, list_methods
    from exegete.metrics import Metric, list_metrics, metric
    from exegete.models import Batch, ExplainedModel, load
    from exegete.objectives import Constraint, Objective, list_objectives, objective
    from exegete.recipes import Recipe, list_recipes, recipe
    from exegete.recipes.train import train
    from exegete.reports.explanations import Explanation, Explanations
    from exegete.studies.compare.compare import compare
    from exegete.studies.compare.comparison import Comparison
    from exegete.studies.corpus.engines import explain_corpus
    from exegete.studies.corpus.job import CorpusJob
    from exegete.studies.corpus.summary import summarise
    from exegete.training import TrainResult
    from exegete.training.terms import ExplanationTerms
    from exegete.training.with_objectives import with_objectives
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "Batch",
    "Comparison",
    "Constraint",
    "CorpusJob",
    "ExegeteError",
    "ExplainedModel",
    "Explainer",
    "Explanation",
    "ExplanationTerms",
    "Explanations",
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
