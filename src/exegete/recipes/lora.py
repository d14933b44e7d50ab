"""Fine-tuning by adapters, for models too large to train whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from datasets import Dataset
from torch import nn

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.objectives import Objective
from exegete.recipes.base import Recipe
from exegete.training import RunOptions, TrainResult
from exegete.training.loop.lora import add_lora, temporary_adapters
from exegete.training.loop.starting_model import Source, is_from_scratch


@dataclass(frozen=True, kw_only=True)
class LoraRecipe(Recipe):
    """Adapters of a `rank` and the head learn, the model's own weights are held."""

    rank: int = 8

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """A handed-over model keeps what of it has gradients, and no adapters.

        Raises:
            ExegeteError: a model from scratch.
        """
        if is_from_scratch(model):
            raise ExegeteError("adapters stand beside weights that were trained: give lora a model, not a size")
        with temporary_adapters(model if isinstance(model, nn.Module) else None):
            return super().run(model, train, dev, folder, options)

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Cross-entropy, of a model that has adapters from here on."""
        add_lora(model, self.rank, 2 * self.rank)
        return super().build_objectives(model, train, seed)


def lora(rank: Annotated[int, "Of each matrix, their scale is 2."] = 8) -> Recipe:
    """Fine-tune small matrices beside a model's weights, and its head, in the ordinary way (LoRA).

    The folder is an adapter's: `exegete.load` finds the model that it was trained on.

    Example: exegete train lora --model openai-community/gpt2 --data sst:data/sst --epochs 2 --output-dir runs/adapter
    """
    return LoraRecipe(name="lora", paper="Hu et al. 2022", rank=rank, trains_language_models=True)
