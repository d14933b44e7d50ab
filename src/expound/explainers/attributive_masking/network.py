"""The network of a masking model: an encoder that scores each token for the prediction of another model."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.explainers.attributive_masking.modes import SoftMasking
from expound.explainers.attributive_masking.retokenization import RetokenizedBatch, Retokenizer
from expound.explainers.attributive_masking.settings import MaskingSettings, Refinement
from expound.models import Batch, ExplainedModel
from expound.models.passes.hooks import replace_embeddings


class MaskingNetwork(nn.Module):
    """An encoder with a head that is shared by all tokens, d → d (tanh) → 1 (sigmoid).

    The encoder reads the text in its own tokens, followed by one embedding of the explained model's prediction,
    z_0 + Σ_j y_j z_j (Barkan et al. 2024).

    Args:
        backbone: a pretrained encoder without a head; its input embeddings are not trained.
        tokenizer: the backbone's tokenizer.
        settings: the other settings.
        refinement: refinement for each example at inference; default: no refinement.
    """

    def __init__(
        self, backbone: PreTrainedModel, tokenizer: Any, settings: MaskingSettings, refinement: Refinement | None = None
    ) -> None:
        super().__init__()
        self.settings, self.refinement = settings, refinement or Refinement()
        if getattr(backbone, "pooler", None) is not None:
            # Unused weights would be saved, and be without a gradient in distributed training.
            backbone.pooler = None
        reader = ExplainedModel(backbone, tokenizer, "classification")
        if reader.is_decoder:
            raise ExpoundError(f"the masking model reads in both directions: {type(backbone).__name__} does not")
        # One position is left for the embedding of the prediction.
        reader.requested_max_length = reader.max_length - 1
        self.reader, self.retokenize = reader, Retokenizer(reader)
        hidden, deviation = int(backbone.config.hidden_size), float(getattr(backbone.config, "initializer_range", 0.02))
        width = int(cast("nn.Embedding", reader.embedding).embedding_dim)
        self.answers = nn.Parameter(torch.randn(settings.classes + 1, width) * deviation)
        dropout = float(getattr(backbone.config, "hidden_dropout_prob", 0.1))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.masking = SoftMasking(settings.mode, settings.predictor, settings.masked_width)
        self.requires_grad_(True)
        self.embeddings.requires_grad_(False)

    @property
    def embeddings(self) -> nn.Module:
        """The part of the backbone that is never trained."""
        backbone = self.reader.model
        return cast("nn.Module", getattr(backbone, "embeddings", None) or backbone.get_input_embeddings())

    def forward(self, retokenized: RetokenizedBatch, answer: Tensor) -> Tensor:
        """Return scores of the masking model's own tokens [B, L'] in [0, 1], 0 outside content.

        Args:
            retokenized: the batch in the masking model's tokens, from `retokenize`.
            answer: y [B, C], the explained model's prediction.
        """
        own = retokenized.own
        # The last column is the prediction's own state.
        hidden = self._encode(own, self.encode_answer(answer))[:, : own.length]
        scores: Tensor = self.head(hidden).squeeze(-1).sigmoid()
        return scores.masked_fill(~own.content, 0.0)

    def encode_answer(self, answer: Tensor) -> Tensor:
        """Return the embedding of answers [B, C], z_0 + Σ_j y_j z_j: [B, d]."""
        # The sum of the paper; the reference code divides it by the number of classes.
        return self.answers[0] + answer.to(self.answers) @ self.answers[1:]

    def map_scores(self, retokenized: RetokenizedBatch, scores: Tensor) -> Tensor:
        """Return scores of the explained model's tokens [B, L] from scores of the network's tokens [B, L']."""
        return retokenized.map_scores(scores, self.settings.aggregation)

    def _encode(self, own: Batch, answer: Tensor) -> Tensor:
        """Return the last layer [B, L' + 1, d], with the prediction's embedding after the last token of each text."""
        # Each text gets the prediction right after its last real token, so that padding does not separate them.
        last = own.length - 1 - own.attended.long().flip(1).argmax(1, keepdim=True)
        inputs: dict[str, Tensor] = {}
        for name in ("input_ids", "token_type_ids"):
            if name in own.inputs and name in self.reader.forward_parameters:
                fill = self.reader.pad_id if name == "input_ids" else 0
                values = nn.functional.pad(own.inputs[name], (0, 1), value=fill)
                # RoBERTa numbers positions by the ids that are not padding: the prediction needs a real id, any one.
                inputs[name] = values.scatter(1, last + 1, own.inputs[name].gather(1, last))
        inputs["attention_mask"] = nn.functional.pad(own.attended, (0, 1)).scatter(1, last + 1, True).long()
        words = self.reader.embedding(inputs["input_ids"])
        place = (last + 1)[..., None].expand(-1, 1, words.shape[-1])
        words = words.scatter(1, place, answer[:, None].to(words.dtype))
        with replace_embeddings(self.reader.embedding, words):
            encoded: Tensor = self.reader.model(**inputs).last_hidden_state
        return encoded
