"""Explanation regularization (ER): training on the explanation loss alone, to find bounds for `er_constrained`."""

from __future__ import annotations

from expound.recipes.base import Recipe
from expound.recipes.guidance import (
    DEPARTURES,
    SHARED_FIELDS,
    DistanceOption,
    Guide,
    NormalizationOption,
    ScaleOption,
    make_alignment_term,
    trainer_arguments,
)

PAPER = {"scale": "position"}
EQUATION = "d(e(x), t)"
USE = "To find the bounds that `er_constrained` needs."
AVOID = "As a classifier; it learns no task."


def er_bound(
    explainer: Guide = "attention_last",
    distance: DistanceOption = "mae",
    normalization: NormalizationOption = None,
    scale: ScaleOption = "example",
) -> Recipe:
    """Train on the explanation loss alone, to find the bounds that er_constrained needs.

    The dev bound is the lowest dev loss, the training bound 1.5 times the lowest training loss, each a mean over seeds.

    Example: expound train er_bound --explainer alti --model bert-base-uncased --data sst:data/sst --output-dir
        runs/bound
    """
    loss, _ = make_alignment_term(explainer, distance=distance, normalization=normalization, scale=scale)
    # §3.4
    patience = 10 if loss.explainer.name == "input_x_gradient" else 5
    return Recipe(
        name="er_bound",
        **SHARED_FIELDS,
        objectives=(loss,),
        **trainer_arguments(3e-5, 25),
        patience=patience,
        departures=DEPARTURES,
    )
