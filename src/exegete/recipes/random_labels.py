"""A model that learned nothing but what examples say by heart: its explanations should not be the trained model's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset

from exegete.errors import ExegeteError
from exegete.recipes.base import Recipe
from exegete.training import RunOptions, TrainResult
from exegete.training.loop.starting_model import Source


@dataclass(frozen=True, kw_only=True)
class RandomLabelsRecipe(Recipe):
    """Ordinary fine-tuning after the training data's labels were shuffled by the seed; dev keeps its own."""

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Trains on shuffled labels."""
        if "label" not in train.column_names:
            raise ExegeteError("there are no labels to shuffle: the data has no column 'label'")
        order = np.random.default_rng(options.seed).permutation(len(train))
        labels = train["label"][:]
        shuffled = train.remove_columns("label").add_column(
            "label", [labels[place] for place in order], feature=train.features["label"]
        )
        return super().run(model, shuffled, dev, folder, options)


def random_labels() -> Recipe:
    """Train on shuffled labels, for sanity checks of explanations (Adebayo et al. 2018).

    Example: exegete train random_labels --model bert-base-uncased --data sst:data/sst --epochs 5
    --output-dir runs/random-labels
    """
    return RandomLabelsRecipe(name="random_labels", paper="Adebayo et al. 2018")
