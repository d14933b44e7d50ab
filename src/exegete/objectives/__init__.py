"""Terms of a training loss on a model and its explanations. A new one is a file and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.objectives.ablation_fidelity import AblationFidelity
    from exegete.objectives.attribution_entropy import AttributionEntropy
    from exegete.objectives.base import Adaptive, Objective, Step, StepContext
    from exegete.objectives.clustering_consistency import ClusteringConsistency
    from exegete.objectives.comprehensiveness import Comprehensiveness
    from exegete.objectives.consistency import Consistency
    from exegete.objectives.criterion import Criterion
    from exegete.objectives.cross_entropy import CrossEntropy, task_losses
    from exegete.objectives.explanation import ExplanationLoss
    from exegete.objectives.explanation_guided import ExplanationGuided
    from exegete.objectives.gradient_penalty import GradientPenalty
    from exegete.objectives.kl_to_original import KlToOriginal
    from exegete.objectives.rank_consistency import RankConsistency
    from exegete.objectives.registry import OBJECTIVES, objective, objectives
    from exegete.objectives.sufficiency import Sufficiency
    from exegete.objectives.virtual_adversarial import VirtualAdversarial
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "OBJECTIVES",
    "AblationFidelity",
    "Adaptive",
    "AttributionEntropy",
    "ClusteringConsistency",
    "Comprehensiveness",
    "Consistency",
    "Criterion",
    "CrossEntropy",
    "ExplanationGuided",
    "ExplanationLoss",
    "GradientPenalty",
    "KlToOriginal",
    "Objective",
    "RankConsistency",
    "Step",
    "StepContext",
    "Sufficiency",
    "VirtualAdversarial",
    "objective",
    "objectives",
    "task_losses",
]
