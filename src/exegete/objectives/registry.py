"""The registry of objectives by their id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exegete.data.registry import Registry
from exegete.data.specs import parse_spec, split_ids
from exegete.errors import ExegeteError
from exegete.explainers.registry import explainer

if TYPE_CHECKING:
    from exegete.objectives.base import Objective

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    "exegete.objectives",
    {
        "cross_entropy": "cross_entropy:CrossEntropy",
        "explanation": "explanation:ExplanationLoss",
        "gradient_penalty": "gradient_penalty:GradientPenalty",
        "virtual_adversarial": "virtual_adversarial:VirtualAdversarialLoss",
        "explanation_guided": "explanation_guided:ExplanationGuidedLoss",
        "comprehensiveness": "comprehensiveness:ComprehensivenessLoss",
        "sufficiency": "sufficiency:SufficiencyLoss",
        "consistency": "consistency:ConsistencyLoss",
        "rank_consistency": "rank_consistency:RankConsistencyLoss",
        "clustering_consistency": "clustering_consistency:ClusteringConsistencyLoss",
        "attribution_entropy": "attribution_entropy:AttributionEntropy",
        "ablation_fidelity": "ablation_fidelity:AblationFidelity",
        "kl_to_original": "kl_to_original:KlToOriginal",
    },
)


def objective(spec: str, **params: Any) -> Objective:
    """An objective by id, as `cross_entropy` or `attribution_entropy?weight=0.1&explainer=attention_all`.

    Parameters of its explainer stand behind another question mark, with semicolons between them:
    `explanation?explainer=integrated_gradients?n_steps=8;baselines=zero&score=kl`.

    Raises:
        ExegeteError: an unknown id or parameter, or a value that is none of its field's type.
    """
    name, given = parse_spec(spec)
    if "explainer" in given:
        params = {"explainer": explainer(given.pop("explainer").replace(";", "&"))} | params
    made: Objective = OBJECTIVES.make(name, **given | params)
    return made


def parse_objectives(specs: str) -> tuple[Objective, ...]:
    """The objectives between commas, each once.

    Raises:
        ExegeteError: none, or one twice; else as `objective`.
    """
    made = tuple(map(objective, split_ids(specs)))
    names = [each.name for each in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ExegeteError(f"the objective {twice} is there twice: give it once, with a weight")
    return made
