"""Terms of a training loss on a model and its explanations: OBJECTIVES["cross_entropy"] is one."""

from __future__ import annotations

from exegete.objectives.base import Adaptive, Objective, Step, StepContext
from exegete.objectives.clustering_consistency import ClusteringConsistency
from exegete.objectives.comprehensiveness import Comprehensiveness
from exegete.objectives.consistency import Consistency
from exegete.objectives.criterion import Criterion
from exegete.objectives.cross_entropy import CrossEntropy, task_losses
from exegete.objectives.explanation import ExplanationLoss
from exegete.objectives.explanation_guided import ExplanationGuided
from exegete.objectives.gradient_penalty import GradientPenalty
from exegete.objectives.sufficiency import Sufficiency
from exegete.objectives.virtual_adversarial import VirtualAdversarial

OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective
    for objective in (
        CrossEntropy,
        ExplanationLoss,
        GradientPenalty,
        VirtualAdversarial,
        ExplanationGuided,
        Comprehensiveness,
        Sufficiency,
        Consistency,
        ClusteringConsistency,
    )
}

__all__ = [
    "OBJECTIVES",
    "Adaptive",
    "ClusteringConsistency",
    "Comprehensiveness",
    "Consistency",
    "Criterion",
    "CrossEntropy",
    "ExplanationGuided",
    "ExplanationLoss",
    "GradientPenalty",
    "Objective",
    "Step",
    "StepContext",
    "Sufficiency",
    "VirtualAdversarial",
    "task_losses",
]
