"""Constrained explanation regularization (ER-C): lowest cross-entropy with the explanation loss below a bound."""

from __future__ import annotations

from typing import Annotated

from expound.errors import ExpoundError
from expound.objectives import Constraint, CrossEntropy
from expound.recipes.base import Effect, Recipe
from expound.recipes.guidance import DEPARTURES as SHARED
from expound.recipes.guidance import (
    SHARED_FIELDS,
    DistanceOption,
    Guide,
    NormalizationOption,
    ScaleOption,
    make_alignment_term,
    trainer_arguments,
)

DEPARTURES = (*SHARED, "The multiplier is stepped by its own RMSprop alone; the authors' AdamW steps it too.")

PAPER = {"scale": "position", "relative_bound": None, "multiplier_learning_rate": None, "multiplier_decay": 0.99}
EQUATION = r"\min \text{CE} \text{ subject to } d(e(x), t) \le \beta"
USE = "You know how close attributions should come, and not the weight."
AVOID = "The bound cannot be reached: the multiplier then grows until the task is forgotten; run `er_bound` first."


def er_constrained(
    explainer: Guide = "attention_last",
    bound: Annotated[
        float | None, "Bound on the training explanation loss; er_bound prints one. Default: see --relative-bound."
    ] = None,
    dev_bound: Annotated[float | None, "Bound on the dev explanation loss. Default: that on the training loss."] = None,
    relative_bound: Annotated[
        float | None,
        "Bound as a multiple of the explanation loss before training, unless --bound is given. --preset paper has none,"
        " and takes the paper's bounds.",
    ] = 0.8,
    multiplier_learning_rate: Annotated[
        float | None, "Learning rate of the multiplier; the paper's belongs to thousands of steps."
    ] = 0.25,
    multiplier_decay: Annotated[
        float, "Decay of the multiplier's RMSprop; use 0.99^k with k times the paper's rate."
    ] = 0.6,
    distance: DistanceOption = "mae",
    normalization: NormalizationOption = None,
    scale: ScaleOption = "example",
) -> Recipe:
    """Guide explanations towards human rationales, with the explanation loss kept below a bound.

    By default the loss has to fall to .8 of its value before training; a bound that holds before training is reported.
    Of the epochs whose dev explanation loss is below 1.1 times the dev bound, the one with the lowest cross-entropy is
    kept. A run without such an epoch ends with feasible: 0; discard it and train another seed. er_bound finds how low a
    bound can be. On 300 sentences of SST, the default raises the AUC of attention from .63 to .79 at the accuracy of
    plain training (one seed), and on 200 film reviews of 512 tokens, of which it sees two epochs, from .44 to .80.

    Example: expound train er_constrained --explainer attention_last --model bert-base-uncased
    --data sst:data/sst --output-dir runs/er
    """
    loss, values = make_alignment_term(explainer, distance=distance, normalization=normalization, scale=scale)
    if bound is None and relative_bound is None:
        bound = values.train_bound
        # the paper's dev bound belongs to its training bound: with another one it does not apply
        if dev_bound is None:
            dev_bound = values.dev_bound
        if bound is None:
            raise ExpoundError(f"the paper has no bound for {loss.explainer.name}: give one, or find it with er_bound")
    if multiplier_learning_rate is None:
        multiplier_learning_rate = values.multiplier_learning_rate
    constrained = Constraint(
        loss,
        bound=bound,
        dev_bound=dev_bound,
        relative_bound=relative_bound or 1.0,
        multiplier_learning_rate=multiplier_learning_rate,
        multiplier_decay=multiplier_decay,
    )
    return Recipe(
        name="er_constrained",
        **SHARED_FIELDS,
        objectives=(CrossEntropy(), constrained),
        **trainer_arguments(values.constrained_rate, 25, metric_for_best_model="feasible_cross_entropy"),
        patience=10,
        effect=Effect("rationale_auc", loss.explainer.name),
        departures=DEPARTURES,
    )
