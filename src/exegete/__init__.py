"""exegete: language models that explain themselves well, and the numbers that prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.data import load_data
    from exegete.errors import ExegeteError
    from exegete.explainers import Explainer, attribute, explainer, list_methods
    from exegete.metrics import Metric, metric
    from exegete.models import Batch, ExplainedModel, load
    from exegete.reports.attributions import Attribution, Attributions
    from exegete.reports.generated import GeneratedAttribution
    from exegete.studies.compare.compare import compare
    from exegete.studies.compare.comparison import Comparison
    from exegete.studies.corpus.engines import explain_corpus
    from exegete.studies.corpus.job import CorpusJob
    from exegete.studies.corpus.summary import summarise
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "Attribution",
    "Attributions",
    "Batch",
    "Comparison",
    "CorpusJob",
    "ExegeteError",
    "ExplainedModel",
    "Explainer",
    "GeneratedAttribution",
    "Metric",
    "attribute",
    "compare",
    "explain_corpus",
    "explainer",
    "list_methods",
    "load",
    "load_data",
    "metric",
    "summarise",
]
