"""Two texts, each read by itself, and how similar an encoder finds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from exegete.data.alignment import align
from exegete.errors import ExegeteError, unknown
from exegete.models.batch import Batch
from exegete.models.encoding import encode as encoding
from exegete.models.explained import ExplainedModel
from exegete.models.families import FAMILIES, Head
from exegete.models.layers.similarity import Similarity
from exegete.models.tasks import Regression

Pooling = Literal["mean", "cls"]
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class PairEncoder(PreTrainedModel):
    """An encoder over two texts side by side, neither of which sees the other; its one output is their cosine.

    `token_type_ids` say which text a position belongs to; the encoder itself gets those of a single text.
    """

    base_model_prefix = "encoder"
    own_head = Head("similarity")
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, encoder: PreTrainedModel, pooling: Pooling = "mean") -> None:
        super().__init__(encoder.config)
        self.encoder, self.pooling = encoder, pooling
        self.similarity = Similarity(
            encoder.get_input_embeddings().weight[:1, :1].expand(1, encoder.config.hidden_size)
        )
        self.first = encoding.get_first_position(encoder)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, output_hidden_states: bool = False
    ) -> SequenceClassifierOutput:
        """Logits [B, 1] of two texts in each row [B, L]."""
        real = attention_mask.bool()
        sides = torch.stack([real & (token_type_ids == side) for side in (0, 1)], 1)  # [B, 2, L]
        seen = (sides[:, :, :, None] & sides[:, :, None, :]).any(1)
        seen = seen | torch.eye(seen.shape[-1], dtype=torch.bool, device=seen.device)  # padding sees itself
        mask = torch.zeros_like(seen, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)[:, None]
        positions = (((sides.long().cumsum(-1) - 1) * sides).sum(1) + self.first).clamp(min=0)
        out = self.encoder(
            input_ids, attention_mask=mask, position_ids=positions, output_hidden_states=output_hidden_states
        )
        weights = sides.to(out[0].dtype)
        if self.pooling == "cls":
            weights = torch.nn.functional.one_hot(sides.long().argmax(-1), real.shape[-1]).to(weights)
        pooled = weights @ out[0] / weights.sum(-1, keepdim=True).clamp(min=1)
        states = out.hidden_states if output_hidden_states else None
        return SequenceClassifierOutput(logits=self.similarity(pooled), hidden_states=states)


class SimilarityTask(Regression):
    """A cosine, read at every position of two texts."""

    is_read_at_positions = True


class BiEncoder(ExplainedModel):
    """How similar an encoder finds two texts, explained by the words of both; as sentence-transformers computes it.

    The similarity is the cosine of the texts' vectors: means over their tokens, or those of their first tokens. It is a
    regression's value. Under `decompx_linear` the vectors' lengths are held and their product is shared by halves, so
    that the scores of all positions and `Explanation.bias` sum to the similarity.

    Args:
        encoder: an encoder without a head, whose attention takes a mask for every pair of positions.
        processing_class: its tokenizer.
        pooling: `mean` or `cls`.
        max_length: tokens that either text may have.
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        processing_class: Any = None,
        pooling: Pooling = "mean",
        max_length: int | None = None,
    ) -> None:
        family = FAMILIES.get(encoder.config.model_type)
        if family is None or not family.accepts_pairwise_mask:
            able = ", ".join(sorted(name for name, other in FAMILIES.items() if other.accepts_pairwise_mask))
            raise ExegeteError(
                f"the similarity of texts is explained for encoders that take a mask of pairs of positions: {able}; "
                f"got {encoder.config.model_type}"
            )
        super().__init__(PairEncoder(encoder, pooling).eval(), processing_class, "regression", max_length)
        self.task = SimilarityTask()

    @property
    def labels(self) -> tuple[str, ...]:
        """The one output."""
        return ("similarity",)

    @property
    def settings(self) -> dict[str, Any]:
        """Also how vectors are pooled."""
        return super().settings | {"pooling": cast(PairEncoder, self.model).pooling}

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Pairs of texts as one batch, each text with special tokens of its own.

        Raises:
            ExegeteError: a text alone.
        """
        batch = encoding.encode(self, examples, type(self)._tokenized, device)
        assert batch.alignments is not None
        sides = torch.zeros_like(batch.inputs["input_ids"])
        for row, alignment in enumerate(batch.alignments):
            sides[row, self._length(alignment.texts[0]) :] = 1
        return replace(batch, inputs=batch.inputs | {"token_type_ids": sides})

    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Half at either text: its first position, or all of it."""
        sides = torch.stack([batch.attended & (batch.inputs["token_type_ids"] == side) for side in (0, 1)], 1)
        if cast(PairEncoder, self.model).pooling == "cls":
            sides = torch.nn.functional.one_hot(sides.long().argmax(-1), batch.length)
        weights = sides.to(self.dtype)
        return (weights / weights.sum(-1, keepdim=True)).mean(1)

    def _length(self, text: str) -> int:
        return len(self.tokenizer(text, truncation=True, max_length=self.max_length)["input_ids"])

    def _tokenized(self, rows: encoding.Rows) -> encoding.TokenizedRows:
        texts = encoding.get_texts(rows)
        if len(texts[0]) == 1:
            raise ExegeteError("similarity is of two texts: give pairs, or rows with 'text' and 'text_pair'")
        columns = [list(column) for column in zip(*texts, strict=True)]
        first, second = (
            self.tokenizer(column, truncation=True, max_length=self.max_length).encodings for column in columns
        )
        cut = [bool(one.overflowing or other.overflowing) for one, other in zip(first, second, strict=True)]
        if any(cut):
            encoding.logger.warning("%d of %d pairs are longer than %d tokens", sum(cut), len(rows), self.max_length)
        merged = list[Encoding]()
        for one, other in zip(first, second, strict=True):
            other.set_sequence_id(1)
            merged.append(Encoding.merge([one, other], growing_offsets=False))
        found = zip(texts, merged, cut, strict=True)
        return merged, tuple(align(text, one, truncated=short) for text, one, short in found)


def read_pooling(folder: Path) -> Pooling | None:
    """How a folder of sentence-transformers pools; None where it is none.

    Raises:
        ExegeteError: a pooling, or a module behind it, that is not explained.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return None
    try:
        kinds = {each["type"].rpartition(".")[2]: each["path"] for each in json.loads(modules.read_text("utf-8"))}
        pooling = json.loads((folder / kinds["Pooling"] / "config.json").read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExegeteError(f"{modules} or the pooling's config.json cannot be read: {error}") from error
    more = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if more or kinds["Transformer"]:
        raise ExegeteError(f"{folder} has {', '.join(sorted(more)) or 'its encoder elsewhere'}: that is not explained")
    chosen = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise unknown("pooling", ", ".join(chosen), POOLINGS)
    return cast(Pooling, POOLINGS[chosen[0]])
