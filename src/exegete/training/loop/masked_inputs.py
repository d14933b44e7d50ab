"""Masked fine-tuning: a model that knows what a missing word is can be asked about inputs without some words."""

from __future__ import annotations

from dataclasses import replace

import torch

from exegete.errors import ExegeteError
from exegete.models import Batch, ExplainedModel
from exegete.objectives import StepContext


def masked(model: ExplainedModel, batch: Batch, share: float, context: StepContext) -> Batch:
    """The batch with the mask token in random places of a `share` of its examples (Madsen et al. 2024, §3).

    A masked example loses each content position with a probability of its own, uniform between 0 and 1.
    """
    if model.modality != "text":
        raise ExegeteError("masked fine-tuning replaces words: it does not apply to images")
    generator = context.generator("masked fine-tuning", batch.device)
    chosen, rate = torch.rand(2, len(batch), 1, generator=generator, device=batch.device)
    drawn = torch.rand(batch.content.shape, generator=generator, device=batch.device)
    lost = batch.content & (drawn < rate) & (chosen < share)
    return replace(
        batch, inputs=batch.inputs | {"input_ids": batch.inputs["input_ids"].masked_fill(lost, model.mask_id)}
    )
