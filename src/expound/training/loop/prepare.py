"""Objectives are made ready for a model, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from expound.errors import ExpoundError
from expound.explainers.learned.base import LearnedExplainer, UntrainedExplainer
from expound.models import ExplainedModel
from expound.objectives import Constraint, Objective


def create_explainer(
    objective: Objective, model: ExplainedModel, made: list[tuple[UntrainedExplainer, LearnedExplainer]]
) -> Objective:
    """Return the objective with its `ID?untrained` explainer, if it has one, created for the model, to be trained.

    Equal specs become the same explainer, which is in `made` then.
    """
    if isinstance(objective, Constraint):
        return replace(objective, objective=create_explainer(objective.objective, model, made))
    spec = getattr(objective, "explainer", None)
    if not isinstance(spec, UntrainedExplainer):
        return objective
    found = [explainer for known, explainer in made if known == spec]
    if not found:
        found = [spec.for_model(model)]
        made.append((spec, found[0]))
    changed: Any = objective
    return cast(Objective, replace(changed, explainer=found[0]))


def require_recomputable(objectives: Sequence[Objective]) -> None:
    """Raise ExpoundError for terms that gradient checkpointing would break."""
    # Checkpointing runs layers again in the backward pass, when attention is no longer captured for these terms.
    blocked = []
    for each in objectives:
        if each.needs_embeddings or each.capture.attentions or each.capture.differentiable_twice:
            blocked.append(each.name)
    if blocked:
        raise ExpoundError(
            f"gradient checkpointing runs layers again without what {', '.join(blocked)} looks at in them: "
            "set gradient_checkpointing=False"
        )
