"""How low an explanation loss can get: training on it alone, and the bounds that follow."""

from __future__ import annotations

from typing import Annotated

from exegete.recipes.base import Recipe
from exegete.recipes.guidance import DEPARTURES, SHARED_FIELDS, arguments, make_explanation_loss


def er_bound(
    guide: Annotated[
        str,
        "What is guided: attention_last, attention_rollout (or attention, rollout), or any differentiable id.",
    ] = "attention_last",
) -> Recipe:
    """Train on the explanation loss alone, to see how low it gets; er_constrained needs bounds made of this.

    The dev bound is the lowest dev loss, the training bound 1.5 times the lowest training loss; means over seeds.

    Example: exegete train er_bound --guide alti --model bert-base-uncased --data sst:data/sst --output-dir runs/bound
    """
    loss, _ = make_explanation_loss(guide, 1.0)
    return Recipe(
        name="er_bound",
        **SHARED_FIELDS,
        objectives=(loss,),
        arguments=arguments(3e-5, 25),
        patience=10 if loss.explainer.name == "input_x_gradient" else 5,
        departures=DEPARTURES,
    )
