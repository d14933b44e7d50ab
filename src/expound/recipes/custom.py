"""A recipe made of any objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from expound.objectives import Objective, parse_objectives
from expound.objectives.registry import check_objectives
from expound.recipes.base import Recipe

EQUATION = r"\sum_k w_k \text{objective}_k"
USE = "A loss of your own from `expound objectives` and plugins."
AVOID = "A named recipe does it: it brings the paper's values."


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
    terms = parse_objectives(objectives) if isinstance(objectives, str) else check_objectives(objectives)
    return Recipe(name="custom", paper="", objectives=terms, trains_language_models=True)
