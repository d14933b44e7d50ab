"""A training method put together from objectives by their specs."""

from __future__ import annotations

from typing import Annotated

from exegete.objectives import parse_objectives
from exegete.recipes.base import Recipe


def custom(
    objectives: Annotated[
        str, "The terms of the loss, as ID?weight=0.1&explainer=METHOD with commas between; `exegete objectives`."
    ] = "cross_entropy",
) -> Recipe:
    """Train on a loss of your own: any objectives, each with its weight and parameters.

    A method that an objective looks at goes into its spec (explainer=attention_all), with its parameters behind another
    question mark and semicolons between them. The best model is chosen as in ordinary fine-tuning, by the task's usual
    figure; --set metric_for_best_model=loss chooses by the whole sum on dev.

    Example: exegete train custom --objectives "cross_entropy,attribution_entropy?weight=0.1" --model bert-base-uncased
    --data sst:data/sst --output-dir runs/concise
    """
    return Recipe(name="custom", paper="", objectives=parse_objectives(objectives), trains_language_models=True)
