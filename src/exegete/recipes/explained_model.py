"""Loading the model that a recipe explains without training it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel, load
from exegete.training import RunOptions
from exegete.training.loop.starting_model import Source, is_from_scratch


def load_explained_model(
    name: str, model: Source | ExplainedModel, options: RunOptions, task: str | None = None
) -> ExplainedModel:
    """Return the model that a recipe explains, on the device of the run.

    Args:
        name: the recipe's id, for error messages.
        model: the fine-tuned model.
        options: options of the run; only the tokenizer, `max_length` and the device apply.
        task: see `exegete.load`.

    Raises:
        ExegeteError: a model from scratch, or a tokenizer for a model that has its own.
    """
    tokenizer, max_length = options.processing_class, options.max_length
    if isinstance(model, ExplainedModel):
        if tokenizer not in (None, model.processing_class):
            raise ExegeteError("the explained model has its tokenizer already: processing_class does not apply")
        if max_length is None:
            return model
        return model.with_max_length(max_length)
    if is_from_scratch(model):
        raise ExegeteError(f"{name} explains a model that is fine-tuned already: give its folder as the model")
    if isinstance(tokenizer, str | Path):
        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer))
    if not isinstance(model, str | Path):
        return load(model, tokenizer, task=task, max_length=max_length)
    device = "cuda"
    if options.trainer_arguments.get("use_cpu") or not torch.cuda.is_available():
        device = "cpu"
    return load(model, tokenizer, device, task=task, max_length=max_length)
