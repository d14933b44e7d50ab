"""Explanation regularisation as one sum of two losses."""

from __future__ import annotations

from typing import Annotated

from exegete.objectives import CrossEntropy
from exegete.recipes.base import Recipe
from exegete.recipes.guidance import DEPARTURES, SHARED_FIELDS, arguments, make_explanation_loss


def er_joint(
    guide: Annotated[
        str,
        "What is guided: attention_last, attention_rollout (or attention, rollout), or any differentiable id.",
    ] = "attention_last",
    weight: Annotated[float, "λ, the weight of the explanation loss; 0 is the paper's baseline."] = 1.0,
) -> Recipe:
    """Guide explanations towards human rationales: cross-entropy + λ · explanation loss.

    The epoch with the lowest sum on dev is kept; five epochs without an improvement end the run. Compare with --weight
    0: the same steps, seed and rule for the best epoch, without the term (`exegete compare --against`). The term is
    often small beside cross-entropy (attention: .06 beside .39): try the weights 1, 10 and 30.

    Example: exegete train er_joint --guide attention_last --weight 10 --model bert-base-uncased --data sst:data/sst
    --output-dir runs/er
    """
    loss, values = make_explanation_loss(guide, weight)
    return Recipe(
        name="er_joint",
        **SHARED_FIELDS,
        objectives=(CrossEntropy(), loss),
        arguments=arguments(values.joint_rate, values.joint_epochs, eval_on_start=True),
        patience=5,
        threshold=1e-5,
        departures=DEPARTURES,
    )
