"""Fine-tuning with LoRA adapters, for models whose weights do not fit into training."""

from __future__ import annotations

from typing import Annotated

from expound.recipes.base import Recipe

EQUATION = r"\text{CE}"
USE = "The model is too large to train whole."


def lora(lora_rank: Annotated[int, "Rank of the adapters.", {"min": 1}] = 8) -> Recipe:
    """Fine-tune low-rank matrices beside a model's weights, and its head, on the task's own loss (LoRA).

    The folder contains the adapter only: `expound.load` loads the model that it was trained on as well. All other
    recipes train adapters, too, with --lora-rank.

    Example: expound train lora --model openai-community/gpt2 --data sst:data/sst --epochs 2 --output-dir runs/adapter
    """
    return Recipe(name="lora", paper="Hu et al. 2022", lora_rank=lora_rank, trains_language_models=True)
