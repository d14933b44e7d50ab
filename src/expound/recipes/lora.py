"""Fine-tuning with LoRA adapters, for models whose weights do not fit into training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from datasets import Dataset

from expound.errors import ExpoundError
from expound.models import ExplainedModel
from expound.objectives import Objective
from expound.recipes.base import Recipe
from expound.training import RunOptions, TrainResult
from expound.training.loop.lora import add_lora, copied_modules
from expound.training.loop.starting_model import Source, is_from_scratch

EQUATION = r"\text{CE}"
USE = "The model is too large to train whole."


@dataclass(frozen=True, kw_only=True)
class LoraRecipe(Recipe):
    """Fine-tuning of adapters of rank `lora_rank` and of the head; the model's own weights are frozen."""

    lora_rank: int = 8

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train with adapters; a model passed as an object stays as it is, and the result shares its weights.

        Raises:
            ExpoundError: a model from scratch.
        """
        if is_from_scratch(model):
            raise ExpoundError("adapters need pretrained weights: give lora a model, not a size")
        with copied_modules(model) as start:
            return super().run(start, train, dev, folder, options)

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Return the cross-entropy, and add the adapters to the model."""
        add_lora(model, self.lora_rank)
        return super().build_objectives(model, train, seed)


def lora(lora_rank: Annotated[int, "Rank of the adapters; their scale is 2."] = 8) -> Recipe:
    """Fine-tune low-rank matrices beside a model's weights, and its head, on the task's own loss (LoRA).

    The folder contains the adapter only: `expound.load` loads the model that it was trained on as well.

    Example: expound train lora --model openai-community/gpt2 --data sst:data/sst --epochs 2 --output-dir runs/adapter
    """
    return LoraRecipe(name="lora", paper="Hu et al. 2022", lora_rank=lora_rank, trains_language_models=True)
