"""Replacements for softly masked words (Barkan et al. 2024, §3, options 1 to 5)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

from exegete.errors import ExegeteError, unknown
from exegete.models import Batch, ExplainedModel, Outputs
from exegete.models.families import FAMILIES

Mode = Literal["mask", "random", "predicted", "learned", "omit"]
MIN_WEIGHT = 1e-9


class SoftMasking(nn.Module):
    """x' = a·E + (1 − a)·m on word embeddings (eq. 3), or attention that does not see what is masked.

    Special tokens, prompts and padding are what they are under every mask.

    Args:
        mode: what m is. `mask`: the embedding of the mask token (of the unknown token where there is none). `random`:
            that of a random token, drawn anew at every call. `predicted`: that of the token that a masked language
            model finds most likely at the place, the masked one itself aside. `learned`: a vector that is learned,
            the mask token's at first. `omit`: nothing; every other position gives the place log a less attention, so
            that at 0 it is not there, while positions stay.
        predictor: folder or hub name of the masked language model; it shares the explained model's tokenizer.
    """

    def __init__(self, mode: Mode = "mask", predictor: str | None = None, width: int | None = None) -> None:
        super().__init__()
        if mode not in get_args(Mode):
            raise unknown("masking mode", mode, get_args(Mode))
        if (mode == "predicted") != (predictor is not None):
            raise ExegeteError(
                "masking by predicted tokens needs a masked language model as predictor, others have none"
            )
        self.mode, self.predictor = mode, predictor
        self.embedding = nn.Parameter(torch.zeros(width)) if mode == "learned" and width else None

    @torch.no_grad()
    def set_learned_embedding(self, model: ExplainedModel) -> None:
        """The learned vector is the mask token's."""
        if self.embedding is not None:
            self.embedding.copy_(model.embedding(torch.tensor(model.mask_id, device=model.device)))

    def reference(self, model: ExplainedModel, batch: Batch, drawn: Tensor) -> Tensor | None:
        """M for every position, [B, L, d]; the embeddings themselves outside content; None where nothing stands in.

        Args:
            model: the explained model.
            batch: B examples.
            drawn: [B, L] numbers from [0, 1) that decide what random tokens there are.
        """
        if self.mode == "omit":
            return None
        embeddings = model.embed(batch)
        if self.mode == "mask":
            return model.embed_reference(batch, "mask")
        if self.mode == "learned":
            assert self.embedding is not None
            return torch.where(batch.content[..., None], self.embedding.to(embeddings), embeddings)
        ids = batch.inputs["input_ids"]
        others = self._random_ids(model, ids, drawn) if self.mode == "random" else self._predict_ids(model, batch)
        other: Tensor = model.embedding(torch.where(batch.content, others, ids))
        return other

    def logits(self, model: ExplainedModel, batch: Batch, keep: Tensor, reference: Tensor | None) -> Tensor:
        """The model's logits [B, C] when each content position is kept by its part, `keep` [B, L] in [0, 1]."""
        if reference is None:
            faded: Outputs = model(_weigh_attention(model, batch, keep))
            return faded.logits
        embeddings = model.embed(batch)
        part = torch.where(batch.content, keep.to(embeddings.dtype), 1.0)[..., None]
        blended: Outputs = model(batch, embeddings=part * embeddings + (1 - part) * reference)
        return blended.logits

    @staticmethod
    def _random_ids(model: ExplainedModel, ids: Tensor, drawn: Tensor) -> Tensor:
        words = sorted(set(range(min(len(model.tokenizer), model.config.vocab_size))) - model.special_ids)
        chosen = (drawn.to(ids.device).double() * len(words)).long().clamp(max=len(words) - 1)
        return torch.tensor(words, device=ids.device)[chosen]

    @torch.no_grad()
    def _predict_ids(self, model: ExplainedModel, batch: Batch) -> Tensor:
        """[B, L] The most likely other token at every content position, the rest of the text given."""
        predictor = _load_predictor(str(self.predictor), str(model.device))
        ids, filled = batch.inputs["input_ids"], batch.inputs["input_ids"].clone()
        if len(model.tokenizer) != predictor.tokens or model.is_decoder:
            raise ExegeteError(f"{self.predictor} does not share the explained model's tokenizer: use one that does")
        taken = {name: batch.inputs[name] for name in ("attention_mask", "token_type_ids") if name in batch.inputs}
        for column in batch.content.any(0).nonzero().flatten().tolist():
            masked = ids.clone()
            masked[:, column] = model.mask_id
            scores = predictor.model(input_ids=masked, **taken).logits[:, column]
            barred = [*model.special_ids]
            scores[:, barred] = -torch.inf
            filled[:, column] = scores.scatter(1, ids[:, column, None], -torch.inf).argmax(1)
        return filled


class _Predictor:
    def __init__(self, model: Any, tokens: int) -> None:
        self.model, self.tokens = model, tokens


@lru_cache(maxsize=1)
def _load_predictor(name: str, device: str) -> _Predictor:
    """The masked language model, kept for the next batch."""
    try:
        model = AutoModelForMaskedLM.from_pretrained(name, use_safetensors=True)
        tokens = len(AutoTokenizer.from_pretrained(name))
    except (OSError, ValueError) as error:
        raise ExegeteError(f"the predictor {name!r} could not be loaded: {str(error).splitlines()[0]}") from error
    return _Predictor(model.to(device).eval().requires_grad_(False), tokens)


def _weigh_attention(model: ExplainedModel, batch: Batch, keep: Tensor) -> Batch:
    """The batch with attention to each content position weighed by `keep`; each position sees itself in full."""
    family = FAMILIES.get(model.config.model_type)
    if family is None or not family.accepts_pairwise_mask:
        able = sorted(name for name, other in FAMILIES.items() if other.accepts_pairwise_mask)
        raise ExegeteError(
            f"omission cannot be trained for {model.config.model_type}, whose attention takes no weights a position; "
            f"it can for {', '.join(able)}. Use another masking mode"
        )
    precise = torch.promote_types(model.dtype, torch.float32)
    seen = torch.where(batch.content, keep.to(precise), batch.attended.to(precise))
    lowest = torch.finfo(model.dtype).min
    bias = torch.where(batch.attended, seen.clamp(min=MIN_WEIGHT).log(), lowest)[:, None, None, :]
    bias = bias.expand(-1, 1, batch.length, -1)
    itself = torch.eye(batch.length, dtype=torch.bool, device=batch.device)
    bias = torch.where(itself & batch.attended[:, None, :, None], 0.0, bias).to(model.dtype)
    return replace(batch, inputs=batch.inputs | {"attention_mask": bias})
