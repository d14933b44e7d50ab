"""Training on shuffled labels: explanations of such a model should differ from a trained model's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset

from expound.errors import ExpoundError
from expound.recipes.base import Recipe
from expound.training import RunOptions, TrainResult
from expound.training.loop.starting_model import Source

EQUATION = r"\text{CE}(\text{shuffled } y \mid x)"
USE = "As a control: an explanation that stays the same does not explain the model."
AVOID = "For anything else."


@dataclass(frozen=True, kw_only=True)
class RandomLabelsRecipe(Recipe):
    """Fine-tuning on training labels that the seed shuffles; the dev labels are kept."""

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the model on shuffled labels. Raises ExpoundError for data without labels."""
        if "label" not in train.column_names:
            raise ExpoundError("there are no labels to shuffle: the data has no column 'label'")
        # a permutation keeps the frequency of each class
        order = np.random.default_rng(options.seed).permutation(len(train))
        labels = train["label"][:]
        shuffled = train.remove_columns("label").add_column(
            "label", [labels[index] for index in order], feature=train.features["label"]
        )
        return super().run(model, shuffled, dev, folder, options)


def random_labels() -> Recipe:
    """Train on shuffled labels, for sanity checks of explanations (Adebayo et al. 2018).

    Example: expound train random_labels --model bert-base-uncased --data sst:data/sst --epochs 5
    --output-dir runs/random-labels
    """
    return RandomLabelsRecipe(name="random_labels", paper="Adebayo et al. 2018")
