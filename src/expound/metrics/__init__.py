"""Metrics that judge attributions. A new metric is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.data.cards import MetricCard
    from expound.metrics.base import Metric
    from expound.metrics.conciseness import ImportantTokens
    from expound.metrics.consistency import Consistency
    from expound.metrics.cost import Measurement, measure_cost
    from expound.metrics.faithfulness.ablation import Lds, TopkDrop
    from expound.metrics.faithfulness.decision_flip import DecisionFlip
    from expound.metrics.faithfulness.deletion_curves import DeletionAuc, InsertionAuc
    from expound.metrics.faithfulness.drops import (
        AopcComprehensiveness,
        AopcDifference,
        AopcSufficiency,
        Comprehensiveness,
        Difference,
        LogOdds,
        Sufficiency,
    )
    from expound.metrics.faithfulness.f_fidelity import FFidelity
    from expound.metrics.faithfulness.infidelity import Infidelity
    from expound.metrics.faithfulness.naopc import NaopcComprehensiveness, NaopcSufficiency
    from expound.metrics.faithfulness.normalised import NormalisedComprehensiveness, NormalisedSufficiency
    from expound.metrics.faithfulness.soft import SoftComprehensiveness, SoftSufficiency
    from expound.metrics.faithfulness.unit_aopc import UnitComprehensiveness, UnitSufficiency
    from expound.metrics.gain import average_relative_gain
    from expound.metrics.plausibility import Auc, Auprc, AveragePrecision, IouF1, NeedleRank, RecallAtK, TokenF1
    from expound.metrics.presets import PRESETS
    from expound.metrics.ranking import top_fraction
    from expound.metrics.registry import METRICS, cards, list_metrics, metric, preset
    from expound.metrics.robustness import model_consistency
    from expound.metrics.sensitivity import input_consistency, max_sensitivity
    from expound.metrics.sides import SideAuc
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
