"""Terms of a training loss on a model and its explanations. A new one is a file and a line in `registry.py`."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.objectives.ablation_fidelity import AblationFidelity
    from expound.objectives.attribution_entropy import AttributionEntropy
    from expound.objectives.attribution_objective import AttributionObjective
    from expound.objectives.base import (
        AdaptiveObjective,
        LabelledObjective,
        Objective,
        StepContext,
        TrainingStep,
        task_losses,
    )
    from expound.objectives.clustering_consistency import ClusteringConsistencyLoss
    from expound.objectives.comprehensiveness import ComprehensivenessLoss
    from expound.objectives.consistency import ConsistencyLoss, PairCriterion
    from expound.objectives.constraint import Constraint
    from expound.objectives.criterion import Criterion, ErasureCriterion
    from expound.objectives.cross_entropy import CrossEntropy
    from expound.objectives.explanation import ExplanationLoss
    from expound.objectives.explanation_guided import ExplanationGuidedLoss
    from expound.objectives.gradient_penalty import GradientPenalty
    from expound.objectives.kl_to_original import KlToOriginal
    from expound.objectives.rank_consistency import RankConsistencyLoss
    from expound.objectives.registry import OBJECTIVES, list_objectives, objective, parse_objectives
    from expound.objectives.right_reasons import RightReasonsLoss
    from expound.objectives.selected_words import SelectedWordsLoss
    from expound.objectives.sufficiency import SufficiencyLoss
    from expound.objectives.virtual_adversarial import VirtualAdversarialLoss
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
