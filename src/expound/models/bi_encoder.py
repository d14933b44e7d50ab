"""Bi-encoders: the similarity of two texts, each read by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from tokenizers import Encoding
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from expound.data.alignment import Alignment, align
from expound.errors import ExpoundError, unknown
from expound.models.batch import Batch
from expound.models.encoding import encode as encoding
from expound.models.encoding.encode import encode_rows
from expound.models.encoding.template import TemplateEncoding
from expound.models.explained import ExplainedModel
from expound.models.hugging_face import Probe, find_failure
from expound.models.layers.architecture import get_first_position
from expound.models.tasks import Regression

TINY = 1e-24


class InnerProduct(nn.Module):
    """The inner product of two vectors; `apply_backward_rules` gives each half of the incoming gradient."""

    def forward(self, both: Tensor) -> Tensor:
        """Return the products [B, 1] of pairs [B, 2, d]."""
        return (both[:, 0] * both[:, 1]).sum(-1, keepdim=True)


class Similarity(nn.Module):
    """The cosine of two vectors; `like` is a tensor of their size, type and device."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        size = like.shape[-1]
        # An RMSNorm with the weight 1/√d divides a vector by its length.
        self.norm = nn.RMSNorm(size, eps=TINY, device=like.device, dtype=like.dtype)
        self.norm.weight.requires_grad_(False)
        nn.init.constant_(self.norm.weight, size**-0.5)
        self.product = InnerProduct()

    def forward(self, both: Tensor) -> Tensor:
        """Return the cosines [B, 1] of pairs [B, 2, d]."""
        similarity: Tensor = self.product(self.norm(both))
        return similarity


Pooling = Literal["mean", "cls"]
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class PairEncoder(PreTrainedModel):
    """An encoder over two texts in one row, without attention between them; its one output is their cosine.

    `token_type_ids` assign positions to texts. The encoder itself does not get them, as if each text were alone.
    """

    base_model_prefix = "encoder"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, encoder: PreTrainedModel, pooling: Pooling = "mean") -> None:
        super().__init__(encoder.config)
        self.encoder, self.pooling = encoder, pooling
        self.similarity = Similarity(
            encoder.get_input_embeddings().weight[:1, :1].expand(1, encoder.config.hidden_size)
        )
        self.first = get_first_position(encoder)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, output_hidden_states: bool = False
    ) -> SequenceClassifierOutput:
        """Return the logits [B, 1] of two texts in each row [B, L]."""
        real = attention_mask.bool()
        sides = torch.stack([real & (token_type_ids == side) for side in (0, 1)], 1)  # [B, 2, L]
        seen = (sides[:, :, :, None] & sides[:, :, None, :]).any(1)
        # Padding sees itself: a row of the softmax without any key would be NaN.
        seen = seen | torch.eye(seen.shape[-1], dtype=torch.bool, device=seen.device)
        mask = torch.zeros_like(seen, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)[:, None]
        # Positions begin anew at the second text.
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
    """A cosine, read at all positions of two texts."""

    is_read_at_positions = True


class BiEncoder(ExplainedModel):
    """An encoder's similarity of two texts, explained by the words of both; as sentence-transformers computes it.

    The similarity is the cosine of the texts' vectors: means over their tokens, or their first tokens' vectors. It is a
    regression's value. `decompx_linear` holds the vectors' lengths and gives each factor of their product half, so that
    the scores of all positions and `TokenScores.bias` sum to the similarity.

    Args:
        encoder: an encoder without a head, whose attention takes a mask for every pair of positions.
        processing_class: its tokenizer.
        pooling: `mean` or `cls`.
        max_length: the most tokens of each text.
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        processing_class: Any = None,
        pooling: Pooling = "mean",
        max_length: int | None = None,
    ) -> None:
        super().__init__(PairEncoder(encoder, pooling).eval(), processing_class, "regression", max_length)
        self.task = SimilarityTask()

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of the only output."""
        return ("similarity",)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of any model, with the pooling."""
        return super().settings | {"pooling": cast(PairEncoder, self.model).pooling}

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode pairs of texts as one batch, each text with special tokens of its own.

        Raises:
            ExpoundError: a text alone; an encoder that reads two texts in one row in another way than each alone.
        """
        batch = encoding.encode(self, examples, type(self)._tokenize, device)
        assert batch.alignments is not None
        sides = torch.zeros_like(batch.inputs["input_ids"])
        for row, alignment in enumerate(batch.alignments):
            first = self.tokenizer(alignment.texts[0], truncation=True, max_length=self.max_length)["input_ids"]
            sides[row, len(first) :] = 1
        batch = replace(batch, inputs=batch.inputs | {"token_type_ids": sides})
        if find_failure(self, "answers", Probe(self, batch.to(self.device))):
            raise ExpoundError(
                "the similarity of texts is explained for encoders that take a mask of pairs of positions, got "
                f"{self.config.model_type}"
            )
        return batch

    def compute_own_answer(self, batch: Batch) -> Tensor:
        """Return the similarity [1, 1] of two texts that the encoder reads one by one."""
        pair, vectors = cast(PairEncoder, self.model), []
        for side in (0, 1):
            ids = batch.inputs["input_ids"][batch.inputs["token_type_ids"] == side][None]
            states = pair.encoder(ids)[0]
            vectors.append(states.mean(1) if pair.pooling == "mean" else states[:, 0])
        return torch.nn.functional.cosine_similarity(*vectors)[:, None]

    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Return weights [B, L], half for each text: at its first position, or equally at all."""
        sides = torch.stack([batch.attended & (batch.inputs["token_type_ids"] == side) for side in (0, 1)], 1)
        if cast(PairEncoder, self.model).pooling == "cls":
            sides = torch.nn.functional.one_hot(sides.long().argmax(-1), batch.length)
        weights = sides.to(self.dtype)
        return (weights / weights.sum(-1, keepdim=True)).mean(1)

    def _tokenize(self, rows: encoding.Rows) -> encoding.TokenizedRows:
        texts = encoding.get_texts(rows)
        if len(texts[0]) == 1:
            raise ExpoundError("similarity is of two texts: give pairs, or rows with 'text' and 'text_pair'")
        # Tokenized one by one, so that each text gets special tokens and may have the full length.
        sides = []
        for column in zip(*texts, strict=True):
            sides.append(encode_rows(self.tokenizer, [(text,) for text in column], self.max_length))
        encodings, alignments, cut = list[TemplateEncoding](), list[Alignment](), 0
        for text, one, other in zip(texts, *sides, strict=True):
            is_cut = bool(one.overflowing or other.overflowing)
            encodings.append(_join(one, other))
            alignments.append(align(text, cast(Encoding, encodings[-1]), truncated=is_cut))
            cut += is_cut
        if cut:
            encoding.logger.warning("%d of %d pairs are longer than %d tokens", cut, len(rows), self.max_length)
        return encodings, tuple(alignments)


def _join(one: Encoding | TemplateEncoding, other: Encoding | TemplateEncoding) -> TemplateEncoding:
    """Return the tokens of two texts in one row."""
    joined = TemplateEncoding([], [], [], [], [], [])
    # Not `Encoding.merge`, which keeps the texts' sequence ids in some versions of tokenizers only.
    for side, part in enumerate((one, other)):
        for name in ("ids", "tokens", "offsets", "special_tokens_mask", "type_ids"):
            getattr(joined, name).extend(getattr(part, name))
        joined.sequence_ids.extend(None if special else side for special in part.special_tokens_mask)
    return joined


def read_pooling(folder: Path) -> Pooling | None:
    """Return the pooling of a sentence-transformers folder; None for other folders.

    Raises:
        ExpoundError: a pooling, or a module after it, that is not explained.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return None
    try:
        kinds = {each["type"].rpartition(".")[2]: each["path"] for each in json.loads(modules.read_text("utf-8"))}
        pooling = json.loads((folder / kinds["Pooling"] / "config.json").read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExpoundError(f"{modules} or the pooling's config.json cannot be read: {error}") from error
    # A normalization changes no cosine; a dense layer would.
    more = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if more or kinds["Transformer"]:
        raise ExpoundError(f"{folder} has {', '.join(sorted(more)) or 'its encoder elsewhere'}: that is not explained")
    chosen = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise unknown("pooling", ", ".join(chosen), POOLINGS)
    return cast(Pooling, POOLINGS[chosen[0]])
