"""Metrics that judge attributions. A new metric is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.data.cards import MetricCard
    from exegete.metrics.base import Metric
    from exegete.metrics.conciseness import ImportantTokens
    from exegete.metrics.consistency import Consistency
    from exegete.metrics.cost import Measurement, measure_cost
    from exegete.metrics.faithfulness.ablation import Lds, TopkDrop
    from exegete.metrics.faithfulness.decision_flip import DecisionFlip
    from exegete.metrics.faithfulness.deletion_curves import DeletionAuc, InsertionAuc
    from exegete.metrics.faithfulness.drops import (
        AopcComprehensiveness,
        AopcDifference,
        AopcSufficiency,
        Comprehensiveness,
        Difference,
        LogOdds,
        Sufficiency,
    )
    from exegete.metrics.faithfulness.f_fidelity import FFidelity
    from exegete.metrics.faithfulness.infidelity import Infidelity
    from exegete.metrics.faithfulness.naopc import NaopcComprehensiveness, NaopcSufficiency
    from exegete.metrics.faithfulness.normalised import NormalisedComprehensiveness, NormalisedSufficiency
    from exegete.metrics.faithfulness.soft import SoftComprehensiveness, SoftSufficiency
    from exegete.metrics.faithfulness.unit_aopc import UnitComprehensiveness, UnitSufficiency
    from exegete.metrics.gain import average_relative_gain
    from exegete.metrics.plausibility import Auc, Auprc, AveragePrecision, IouF1, NeedleRank, RecallAtK, TokenF1
    from exegete.metrics.presets import PRESETS
    from exegete.metrics.ranking import top_fraction
    from exegete.metrics.registry import METRICS, cards, list_metrics, metric, preset
    from exegete.metrics.robustness import model_consistency
    from exegete.metrics.sensitivity import input_consistency, max_sensitivity
    from exegete.metrics.sides import SideAuc
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "METRICS", "PRESETS", "AopcComprehensiveness", "AopcDifference", "AopcSufficiency", "Auc", "Auprc",
    "AveragePrecision", "Comprehensiveness", "Consistency", "DecisionFlip", "DeletionAuc", "Difference",
    "FFidelity", "ImportantTokens", "Infidelity", "InsertionAuc", "IouF1", "Lds", "LogOdds", "Measurement",
    "Metric", "MetricCard", "NaopcComprehensiveness", "NaopcSufficiency", "NeedleRank",
    "NormalisedComprehensiveness", "NormalisedSufficiency", "RecallAtK", "SideAuc", "SoftComprehensiveness",
    "SoftSufficiency", "Sufficiency", "TokenF1", "TopkDrop", "UnitComprehensiveness", "UnitSufficiency",
    "average_relative_gain", "cards", "input_consistency", "list_metrics", "max_sensitivity", "measure_cost",
    "metric", "model_consistency", "preset", "top_fraction"
]  # fmt: skip
