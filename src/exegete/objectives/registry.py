"""The registry of objectives by their id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exegete.data.registry import Registry

if TYPE_CHECKING:
    from exegete.objectives.base import Objective

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    "exegete.objectives",
    {
        "cross_entropy": "cross_entropy:CrossEntropy",
        "explanation": "explanation:ExplanationLoss",
        "gradient_penalty": "gradient_penalty:GradientPenalty",
        "virtual_adversarial": "virtual_adversarial:VirtualAdversarial",
        "explanation_guided": "explanation_guided:ExplanationGuided",
        "comprehensiveness": "comprehensiveness:Comprehensiveness",
        "sufficiency": "sufficiency:Sufficiency",
        "consistency": "consistency:Consistency",
        "clustering_consistency": "clustering_consistency:ClusteringConsistency",
    },
)
