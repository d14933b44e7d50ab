"""A recipe made of any objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from datasets import Dataset

from expound.data.registry import parse_spec, split_ids
from expound.models import ExplainedModel
from expound.objectives import Objective, objective, parse_objectives
from expound.objectives.registry import check_objectives
from expound.recipes.base import Recipe

EQUATION = r"\sum_k w_k \text{objective}_k"
USE = "A loss of your own from `expound objectives` and plugins."
AVOID = "A named recipe does it: it brings the paper's values."


@dataclass(frozen=True, kw_only=True)
class CustomRecipe(Recipe):
    """Terms of a loss from their `specs`, which are made for the model that training starts from."""

    specs: str

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Return the terms for this model."""
        return parse_objectives(self.specs, model)


def custom(
    objectives: Annotated[
        str | Sequence[Objective],
        "Terms of the loss, as ID?weight=0.1&explainer=METHOD with commas between; see `expound objectives`.",
    ] = "cross_entropy",
) -> Recipe:
    """Train on a loss of your own: any objectives, each with its weight and parameters.

    The explainer of an objective is a parameter of its spec (explainer=attention_all); its own parameters follow a
    second question mark, with semicolons between them. The best checkpoint is chosen by the task's default metric;
    --set metric_for_best_model=loss chooses it by the total loss on dev.

    Example: expound train custom --objectives "cross_entropy,attribution_entropy?weight=0.1" --model bert-base-uncased
    --data sst:data/sst --output-dir runs/concise
    """
    if not isinstance(objectives, str):
        terms = check_objectives(objectives)
        return Recipe(name="custom", paper="", objectives=terms, trains_language_models=True)
    drafts = []
    for spec in split_ids(objectives):
        name, params = parse_spec(spec)
        given: dict[str, Any] = dict(params)
        # An untrained explainer needs the model; what is checked before training does not depend on it.
        if "?untrained" in params.get("explainer", ""):
            del given["explainer"]
        drafts.append(objective(name, **given))
    return CustomRecipe(
        name="custom", paper="", objectives=check_objectives(drafts), specs=objectives, trains_language_models=True
    )
