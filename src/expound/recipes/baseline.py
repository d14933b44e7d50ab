"""Ordinary fine-tuning, the baseline of every other recipe."""

from __future__ import annotations

import logging
from copy import deepcopy
from pathlib import Path

from datasets import Dataset

from expound.models import ExplainedModel, load
from expound.recipes.base import Recipe
from expound.training import RunOptions
from expound.training.loop.starting_model import Source

logger = logging.getLogger(__name__)
EQUATION = r"\text{CE}"
USE = "First, and as the row that every other recipe is compared with."


def baseline() -> Recipe:
    """Fine-tune a model on the task's own loss: the baseline of every other recipe.

    The data decides the task: texts, pairs, regressions, questions on a context, images, or prompts with responses.

    Example: expound train baseline --model bert-base-uncased --data sst:data/sst --epochs 2 --max-length 64
    --output-dir runs/sst
    """
    return Recipe(name="baseline", paper="", trains_language_models=True)


def train_companion(
    folder: Path, role: str, model: Source, train: Dataset, dev: Dataset, options: RunOptions
) -> ExplainedModel:
    """Return a baseline trained from the same start, saved beside the recipe's folder under that name plus its role.

    Raises:
        Stopped: a signal stopped its training.
    """
    place = folder.with_name(f"{folder.name}-{role}")
    logger.warning("phase 1 of 2: the %s is trained, in %s", role, place)
    # a copy: the recipe trains the same model object afterwards
    result = baseline().train(deepcopy(model), train, dev, place, options)
    result.require_finished(f"the {role}'s training")
    logger.warning("phase 2 of 2: the training that uses the %s, in %s", role, folder)
    return load(result.output_dir, device=result.model.device)
