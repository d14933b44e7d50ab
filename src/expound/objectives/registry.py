"""The registry of objectives by their id."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from expound.data.registry import Registry, parse_spec, split_ids
from expound.errors import ExpoundError
from expound.explainers.registry import explainer

if TYPE_CHECKING:
    import pandas as pd

    from expound.explainers import Explainer
    from expound.models import ExplainedModel
    from expound.objectives.base import Objective

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    "expound.objectives",
    {
        "cross_entropy": "base:CrossEntropy",
        "rationale_alignment": "rationale_alignment:RationaleAlignment",
        "selected_words": "selected_words:SelectedWordsLoss",
        "right_reasons": "right_reasons:RightReasonsLoss",
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
        "constraint": "constraint:Constraint",
    },
)


def objective(spec: str | Objective, model: ExplainedModel | None = None, **params: Any) -> Objective:
    """Return the objective of an id with these parameters, as `objective("cross_entropy", weight=2)`.

    Args:
        spec: an id, or an id with parameters, as `attribution_entropy?weight=0.1&explainer=attention_all`. On the
            command line, parameters of the explainer follow a second question mark, with semicolons between them:
            `rationale_alignment?explainer=integrated_gradients?n_steps=8;baselines=zero&distance=kl`, and so do those
            of a constraint's objective: `constraint?bound=1&objective=rationale_alignment?distance=kl`. An `Objective`
            is returned unchanged.
        model: the model that is trained, for an explainer that is trained with it, as `ID?untrained`.
        params: parameters of the objective; they override the spec's. From Python, pass parts as objects.

    Raises:
        ExpoundError: an unknown id or parameter, or a value of the wrong type.
    """
    if not isinstance(spec, str):
        if params:
            raise ExpoundError(f"{spec.name} is an Objective already: pass {', '.join(params)} when you create it")
        return spec
    name, texts = parse_spec(spec)
    given: dict[str, Any] = dict(texts)
    given |= params
    for part, make in (("explainer", explainer), ("objective", objective)):
        # a spec is split at &, so the parameters of a part inside it are separated by semicolons
        if isinstance(given.get(part), str):
            given[part] = make(given[part].replace(";", "&"), model)
    made: Objective = OBJECTIVES.make(name, **given)
    return made


def parse_objectives(specs: str, model: ExplainedModel | None = None) -> tuple[Objective, ...]:
    """Return the objectives of a list of specs with commas between them, for the model that is trained.

    Terms whose explainers have equal specs share one explainer, whose parameters they train together.

    Raises:
        ExpoundError: an empty list, or the same objective twice; else as `objective`.
    """
    explainers: dict[str, Explainer] = {}
    terms = []
    for spec in split_ids(specs):
        name, params = parse_spec(spec)
        given: dict[str, Any] = dict(params)
        own = params.get("explainer")
        if own is not None:
            if own not in explainers:
                explainers[own] = explainer(own.replace(";", "&"), model)
            given["explainer"] = explainers[own]
        terms.append(objective(name, model, **given))
    return check_objectives(terms)


def check_objectives(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    """Return the objectives as a tuple. Raises ExpoundError if one occurs twice: logs know them by their name."""
    names = [objective.name for objective in objectives]
    for name in names:
        if names.count(name) > 1:
            raise ExpoundError(f"the objective {name} occurs twice: use it once, with a weight")
    return tuple(objectives)


def list_objectives() -> pd.DataFrame:
    """Return a table of the objectives: id, parameters with their defaults, equation in LaTeX, and what each one is."""
    import pandas as pd

    rows = []
    for name, part in OBJECTIVES.items():
        params = []
        for key, value in part().params.items():
            # an explainer is recorded as a dict of its id and parameters
            params.append(f"{key}={value['method'] if isinstance(value, dict) else value}")
        summary = inspect.getdoc(part) or ""
        rows.append(
            {
                "name": name,
                "parameters": ", ".join(params),
                "equation": part.equation,
                "summary": " ".join(summary.split("\n\n")[0].split()),
            }
        )
    return pd.DataFrame(rows)
