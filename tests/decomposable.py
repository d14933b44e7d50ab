"""Random models of every family that can be decomposed, in float64, and inputs for them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

import families
from expound.models import Batch, ExplainedModel
from families import replace_rms_norms

FAMILIES = tuple(families.FAMILIES)
LENGTHS = (9, 6, 2)


def model(family: str, head: str = "SequenceClassification", seed: int = 0, **changes) -> ExplainedModel:
    """A model of the family in which every weight, bias and norm weight is random."""
    if family == "big_bird":
        changes |= {"attention_type": "original_full"}
    made = families.tiny(family, head, seed=seed, dtype=torch.float64, **changes)
    replace_rms_norms(made)
    return ExplainedModel(made)


@functools.cache
def shared_model(family: str) -> ExplainedModel:
    """One such model for all tests that do not change it."""
    return model(family)


def batch(model: ExplainedModel, lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> Batch:
    """Random ids padded on the model's side, or random pictures."""
    generator = torch.Generator().manual_seed(seed)
    if model.modality == "image":
        pixels = torch.randn(len(lengths), 1, 8, 8, generator=generator, dtype=torch.float64)
        everywhere = torch.ones(len(lengths), 17, dtype=torch.bool)
        return Batch({"pixel_values": pixels}, everywhere, everywhere, torch.arange(17).expand(len(lengths), -1))
    ids = torch.randint(5, 300, (len(lengths), max(lengths)), generator=generator)
    attended = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    if model.is_decoder:
        attended = attended.flip(1)
    return model.add_position_ids(Batch.from_ids(ids.masked_fill(~attended, model.pad_id), attended))


def alone(model: ExplainedModel, batch: Batch, row: int) -> Batch:
    """One example without its padding."""
    return batch.select([row]).trim_padding()[0]


def zero_biases(model: ExplainedModel) -> None:
    """Leave the model without any bias."""
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()


def golden_model(golden: Path, dtype: torch.dtype) -> ExplainedModel:
    """The model that the published programs were run on."""
    folder = golden / "bert-tiny"
    return ExplainedModel(AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval())


def golden_reference(golden: Path) -> tuple[dict[str, np.ndarray], ExplainedModel, Batch]:
    """The numbers of the authors' programs, and the model and batch they are of."""
    values = dict(np.load(golden / "bert_reference_f64.npz"))
    batch = Batch.from_ids(*(torch.tensor(values[n]) for n in ("input_ids", "attention_mask", "token_type_ids")))
    return values, golden_model(golden, torch.float64), batch
