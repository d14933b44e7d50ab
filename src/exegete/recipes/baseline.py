"""Ordinary fine-tuning, which every other method is compared with."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from datasets import Dataset

from exegete.models import ExplainedModel, load
from exegete.recipes.base import Recipe
from exegete.training import RunOptions
from exegete.training.loop.starting_model import Source


def baseline() -> Recipe:
    """Fine-tune a model in the ordinary way: the baseline of every other training method.

    Texts, pairs, regressions, questions on a context and images: the data says which.

    Example: exegete train baseline --model bert-base-uncased --data sst:data/sst --epochs 2 --max-length 64
    --output-dir runs/sst
    """
    return Recipe(name="baseline", paper="", trains_language_models=True)


def train_companion(
    folder: Path, role: str, model: Source, train: Dataset, dev: Dataset, options: RunOptions
) -> ExplainedModel:
    """A baseline from the same start, in a folder beside a recipe's own whose name ends with its role.

    Raises:
        Stopped: a signal came during its training.
    """
    result = baseline().train(deepcopy(model), train, dev, folder.with_name(f"{folder.name}-{role}"), options)
    result.require_finished(f"the {role}'s training")
    return load(result.folder, device=result.model.device)
