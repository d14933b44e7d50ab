"""Terms of a training loss on a model and its explanations. A new one is a file and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.objectives.ablation_fidelity import AblationFidelity
    from exegete.objectives.attribution_entropy import AttributionEntropy
    from exegete.objectives.attribution_objective import AttributionObjective
    from exegete.objectives.base import (
        AdaptiveObjective,
        LabelledObjective,
        Objective,
        StepContext,
        TrainingStep,
        task_losses,
    )
    from exegete.objectives.clustering_consistency import ClusteringConsistencyLoss
    from exegete.objectives.comprehensiveness import ComprehensivenessLoss
    from exegete.objectives.consistency import ConsistencyLoss, PairCriterion
    from exegete.objectives.constraint import Constraint
    from exegete.objectives.criterion import Criterion, ErasureCriterion
    from exegete.objectives.cross_entropy import CrossEntropy
    from exegete.objectives.explanation import ExplanationLoss
    from exegete.objectives.explanation_guided import ExplanationGuidedLoss
    from exegete.objectives.gradient_penalty import GradientPenalty
    from exegete.objectives.kl_to_original import KlToOriginal
    from exegete.objectives.rank_consistency import RankConsistencyLoss
    from exegete.objectives.registry import OBJECTIVES, list_objectives, objective, parse_objectives
    from exegete.objectives.right_reasons import RightReasonsLoss
    from exegete.objectives.selected_words import SelectedWordsLoss
    from exegete.objectives.sufficiency import SufficiencyLoss
    from exegete.objectives.virtual_adversarial import VirtualAdversarialLoss
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "OBJECTIVES", "AblationFidelity", "AdaptiveObjective", "AttributionEntropy", "AttributionObjective",
    "ClusteringConsistencyLoss", "ComprehensivenessLoss", "ConsistencyLoss", "Constraint", "Criterion",
    "CrossEntropy", "ErasureCriterion", "ExplanationGuidedLoss", "ExplanationLoss", "GradientPenalty",
    "KlToOriginal", "LabelledObjective", "Objective", "PairCriterion", "RankConsistencyLoss",
    "RightReasonsLoss", "SelectedWordsLoss", "StepContext", "SufficiencyLoss", "TrainingStep",
    "VirtualAdversarialLoss", "list_objectives", "objective", "parse_objectives", "task_losses"
]  # fmt: skip
