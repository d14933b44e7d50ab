"""A recipe with the confidence penalty."""

from __future__ import annotations

from typing import Annotated

from expound.objectives import CrossEntropy
from expound.recipes import Recipe
from expound_example.confidence_penalty import ConfidencePenalty


def penalize_confidence(weight: Annotated[float, "Weight of the penalty; 0: ordinary fine-tuning."] = 0.1) -> Recipe:
    """Fine-tune a classifier, and penalize confident predictions (Pereyra et al. 2017).

    Example: expound train penalize_confidence --weight 0.2 --model bert-base-uncased --data starred:reviews.txt
    --output-dir runs/penalized
    """
    return Recipe(
        name="penalize_confidence",
        paper="Pereyra et al. 2017",
        objectives=(CrossEntropy(), ConfidencePenalty(weight)),
        arguments={"learning_rate": 2e-5, "num_train_epochs": 5},
        patience=2,
    )
