"""Modes of soft masking: what replaces a masked word (Barkan et al. 2024, §3, options 1 to 5)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

from expound.data.registry import check_choices
from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.checks import check_pairwise_mask, weigh_attention
from expound.models.loading.adapters import read_config

Mode = Literal["mask", "random", "predicted", "learned", "omit"]


class SoftMasking(nn.Module):
    """Soft masking by x' = a·E + (1 − a)·m on word embeddings (eq. 3), or by reduced attention to masked words.

    Special tokens, prompts and padding are never masked.

    Args:
        mode: the vector m. `mask`: the embedding of the mask token, or of the unknown token of models without one.
            `random`: a random token's, drawn anew at each call. `predicted`: the embedding of the token that a masked
            language model finds most likely at the position, except the original token. `learned`: a learned vector
            that starts as the mask token's. `omit`: no vector; log a is added to the attention that other positions
            give to the position, so that it has no effect at a = 0, while the other positions keep their numbers.
        predictor: folder or hub name of the masked language model, which must share the explained model's tokenizer.
        width: width of the learned vector.
    """

    def __init__(self, mode: Mode = "mask", predictor: str | None = None, width: int | None = None) -> None:
        super().__init__()
        self.mode, self.predictor = mode, predictor
        check_choices(self)
        if (mode == "predicted") != (predictor is not None):
            raise ExpoundError(
                "masking by predicted tokens needs a masked language model as predictor, others have none"
            )
        self.embedding = nn.Parameter(torch.zeros(width)) if mode == "learned" and width else None

    @torch.no_grad()
    def set_learned_embedding(self, model: ExplainedModel) -> None:
        """Set the learned vector to the mask token's embedding."""
        if self.embedding is not None:
            self.embedding.copy_(model.embedding(torch.tensor(model.mask_id, device=model.device)))

    def reference(self, model: ExplainedModel, batch: Batch, drawn: Tensor) -> Tensor | None:
        """Return what masked positions get, m [B, L, d]; word embeddings outside content; None for the mode `omit`.

        Args:
            model: the explained model.
            batch: B examples.
            drawn: [B, L] uniform values from [0, 1) that select the random tokens.
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
        """Return the model's logits [B, C] under a soft mask, `keep` [B, L] in [0, 1]."""
        if reference is None:
            outputs: Outputs = model(weigh_attention(model, batch, keep))
            return outputs.logits
        embeddings = model.embed(batch)
        # On word embeddings: the model adds positions and token types itself, once.
        part = torch.where(batch.content, keep.to(embeddings.dtype), 1.0)[..., None]
        blended: Outputs = model(batch, embeddings=part * embeddings + (1 - part) * reference)
        return blended.logits

    @staticmethod
    def _random_ids(model: ExplainedModel, ids: Tensor, drawn: Tensor) -> Tensor:
        words = sorted(set(range(min(len(model.tokenizer), model.config.vocab_size))) - model.special_ids)
        # Clamped: a float32 number just below 1 can round up to it.
        index = (drawn.to(ids.device).double() * len(words)).long().clamp(max=len(words) - 1)
        return torch.tensor(words, device=ids.device)[index]

    @torch.no_grad()
    def _predict_ids(self, model: ExplainedModel, batch: Batch) -> Tensor:
        """Return the most likely other token at each content position, given the rest of the text: [B, L]."""
        predictor, tokens = _load_predictor(str(self.predictor), str(model.device))
        ids, filled = batch.inputs["input_ids"], batch.inputs["input_ids"].clone()
        if len(model.tokenizer) != tokens or model.is_decoder:
            raise ExpoundError(f"{self.predictor} does not share the explained model's tokenizer: use one that does")
        inputs = {name: batch.inputs[name] for name in ("attention_mask", "token_type_ids") if name in batch.inputs}
        for column in batch.content.any(0).nonzero().flatten().tolist():
            masked = ids.clone()
            masked[:, column] = model.mask_id
            scores = predictor(input_ids=masked, **inputs).logits[:, column]
            # Neither special tokens nor the original token may be predicted.
            scores[:, [*model.special_ids]] = -torch.inf
            filled[:, column] = scores.scatter(1, ids[:, column, None], -torch.inf).argmax(1)
        return filled


@lru_cache(maxsize=1)
def _load_predictor(name: str, device: str) -> tuple[Any, int]:
    """Load the masked language model, and count its tokens; the last one is kept for the next batch."""
    try:
        model = AutoModelForMaskedLM.from_pretrained(name, config=read_config(name), use_safetensors=True)
        tokens = len(AutoTokenizer.from_pretrained(name))
    except (OSError, ValueError) as error:
        raise ExpoundError(f"the predictor {name!r} could not be loaded: {str(error).splitlines()[0]}") from error
    return model.to(device).eval().requires_grad_(False), tokens


def choose_mode(model: ExplainedModel, batch: Batch) -> Mode:
    """Return the default mode: `omit`, or `mask` for models whose attention accepts no weights."""
    return "mask" if check_pairwise_mask(model, batch) else "omit"
