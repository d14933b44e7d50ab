"""Texts, pairs and images become batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from exegete.data.alignment import Alignment, align, token_mask
from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.encoding.images import count_leading_tokens
from exegete.models.state.locks import get_lock

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel

logger = logging.getLogger(__name__)
Spans = Sequence[Sequence[int]]
Rows = Sequence[Mapping[str, Any]]
TokenizedRows = tuple[Sequence[Any], tuple[Alignment, ...]]


def example_to_row(example: Any) -> Mapping[str, Any]:
    """One example in the canonical columns: a text, a pair, an image, or a row that has them already."""
    if isinstance(example, str):
        return {"text": example}
    if isinstance(example, Mapping):
        return example
    if isinstance(example, tuple | list) and len(example) == 2 and all(isinstance(part, str) for part in example):
        return {"text": example[0], "text_pair": example[1]}
    if hasattr(example, "convert"):
        return {"image": example}
    if isinstance(example, np.ndarray) and example.dtype == np.uint8 and example.ndim in (2, 3):
        return {"image": Image.fromarray(example)}
    kind = f"an array of {example.dtype}, {example.shape}" if isinstance(example, np.ndarray) else f"{example!r:.80}"
    raise ExegeteError(
        "an example is a text, a pair (text, text), an image (of PIL, or an array of uint8, [H, W, 3]) or a row with "
        f"the column 'text', not {kind}"
    )


def encode(
    model: ExplainedModel,
    examples: Sequence[Any],
    tokenize: Callable[[Any, Rows], TokenizedRows] | None = None,
    device: str | torch.device | None = None,
) -> Batch:
    """The examples as one batch; see `ExplainedModel.encode`.

    `tokenize`: rows to encodings and alignments, for models that put texts into something else.
    """
    if not len(examples):
        raise ExegeteError("there is no example to encode")
    rows = [example_to_row(example) for example in examples]
    with model.lock(), get_lock(model.processing_class):
        batch = _images(model, rows) if model.modality == "image" else _texts(model, rows, tokenize or _tokenize)
    return batch.to(device or model.device)


def get_first_position(model: nn.Module) -> int:
    """RoBERTa's first position is the one after its padding index; everybody else's is 0."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _texts(model: ExplainedModel, rows: Rows, tokenize: Callable[[Any, Rows], TokenizedRows]) -> Batch:
    encodings, alignments = tokenize(model, rows)
    ids = [torch.tensor(encoding.ids) for encoding in encodings]
    special = model.special_ids
    content = [
        torch.tensor([not added and i not in special for added, i in zip(e.special_tokens_mask, e.ids, strict=True)])
        for e in encodings
    ]
    for index, (mask, alignment) in enumerate(zip(content, alignments, strict=True)):
        if not mask.any():
            raise ExegeteError(
                f"example {index} has nothing to explain: {' / '.join(alignment.texts)!r:.80} has no token"
            )
    pad = _Padding(max(len(row) for row in ids), left=model.is_decoder)
    attended = pad([torch.ones_like(row, dtype=torch.bool) for row in ids], fill=False)
    inputs = {"input_ids": pad(ids, fill=model.pad_id), "attention_mask": attended.long()}
    if _has_token_types(model):
        inputs["token_type_ids"] = pad([torch.tensor(encoding.type_ids) for encoding in encodings], fill=0)
    batch = Batch(
        inputs=inputs,
        attended=attended,
        content=pad(content, fill=False),
        word_of=pad([torch.tensor(alignment.word_of) for alignment in alignments], fill=-1),
        alignments=alignments,
        **_annotations(model, rows, alignments, pad),
    )
    return model.add_position_ids(batch)


def _has_token_types(model: ExplainedModel) -> bool:
    """Whether the model is told which text a token is of; one that generates never is, and GPT-2 would add a word."""
    generates = model.is_decoder and model.model.get_output_embeddings() is not None
    return not generates and model.accepts("token_type_ids") and "token_type_ids" in model.tokenizer.model_input_names


def _tokenize(model: ExplainedModel, rows: Rows) -> TokenizedRows:
    texts = get_texts(rows)
    if model.task.name == "span" and len(texts[0]) == 1:
        raise ExegeteError("question answering needs a question, 'text', and its context, 'text_pair'")
    columns = [list(column) for column in zip(*texts, strict=True)]
    strategy = "longest_first" if model.task.name != "span" else "only_second"
    tokenizer = model.tokenizer
    try:
        encoded = tokenizer(*columns, truncation=strategy, max_length=model.max_length, padding=False)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ExegeteError(f"the texts cannot be cut into at most {model.max_length} tokens: {error}") from error
    truncated = [bool(encoding.overflowing) for encoding in encoded.encodings]
    if any(truncated):
        logger.warning(
            "%d of %d texts are longer than %d tokens: truncated", sum(truncated), len(rows), model.max_length
        )
    return encoded.encodings, tuple(
        align(text, encoding, truncated=cut)
        for text, encoding, cut in zip(texts, encoded.encodings, truncated, strict=True)
    )


def get_texts(rows: Rows) -> list[tuple[str, ...]]:
    """The text or the two texts of every row; all rows have as many."""
    texts = [_text_of(row, index) for index, row in enumerate(rows)]
    if len({len(text) for text in texts}) > 1:
        raise ExegeteError("a batch holds either texts or pairs, not both: encode them apart")
    return texts


def _text_of(row: Mapping[str, Any], index: int) -> tuple[str, ...]:
    text, pair = row.get("text"), row.get("text_pair")
    if not isinstance(text, str):
        raise ExegeteError(f"example {index} has no text in a column 'text'; its columns: {', '.join(row) or 'none'}")
    if not isinstance(pair, str | None):
        raise ExegeteError(f"example {index} has no text in the column 'text_pair' but {pair!r:.80}")
    if not text.strip() and not (pair or "").strip():
        raise ExegeteError(f"example {index} is an empty text")
    return (text,) if pair is None else (text, pair)


def _annotations(
    model: ExplainedModel, rows: Sequence[Mapping[str, Any]], alignments: tuple[Alignment, ...], pad: _Padding
) -> dict[str, Any]:
    """Labels, rationales and where a span may lie, as far as the rows have them."""
    found: dict[str, Tensor] = {}
    if any(row.get("rationale") is not None or row.get("rationale_pair") is not None for row in rows):
        marked = [_rationale(row, alignment) for row, alignment in zip(rows, alignments, strict=True)]
        found["rationale_mask"] = pad([torch.tensor(mask) for mask, _ in marked], fill=False)
        found["has_rationale"] = torch.tensor([known for _, known in marked])
    if model.task.name == "span":
        found["answerable"] = pad([_answerable(alignment) for alignment in alignments], fill=False)
        if all(row.get("answer") is not None for row in rows):
            spans = [_answer(row["answer"], alignment) for row, alignment in zip(rows, alignments, strict=True)]
            starts = pad.offsets([len(alignment.tokens) for alignment in alignments])
            found["labels"] = torch.where(torch.tensor(spans) < 0, -1, torch.tensor(spans) + starts[:, None])
    elif all(row.get("label") is not None for row in rows):
        found["labels"] = _labels(model, rows)
    return found


def _labels(model: ExplainedModel, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """[B] Numbers as they are, names by the model's own list."""
    return torch.tensor(
        [model.label_id(row["label"]) if isinstance(row["label"], str) else row["label"] for row in rows]
    )


def _rationale(row: Mapping[str, Any], alignment: Alignment) -> tuple[list[bool], bool]:
    sides: list[Spans | None] = [row.get("rationale"), row.get("rationale_pair")]
    masks = [token_mask(alignment, spans, side) for side, spans in enumerate(sides) if spans is not None]
    if not masks:
        return [False] * len(alignment.tokens), False
    return [any(marks) for marks in zip(*masks, strict=True)], True


def _answerable(alignment: Alignment) -> Tensor:
    """Tokens of the context, and the first position, which stands for "no answer"."""
    context = torch.tensor([span is not None and span[0] == 1 for span in alignment.spans])
    context[0] = True
    return context


def _answer(spans: Spans, alignment: Alignment) -> tuple[int, int]:
    """First and last token of the first answer; (0, 0) when there is none, (-1, -1) when it was cut off."""
    if not len(spans):
        return 0, 0
    start, end = spans[0]
    inside = [i for i, marked in enumerate(token_mask(alignment, [spans[0]], 1)) if marked]
    if not inside:
        return -1, -1
    last = alignment.spans[inside[-1]]
    return (inside[0], inside[-1]) if last is not None and last[2] >= end and start >= 0 else (-1, -1)


def _images(model: ExplainedModel, rows: Sequence[Mapping[str, Any]]) -> Batch:
    if model.processing_class is None:
        raise ExegeteError("the model came without an image processor: pass it as processing_class")
    missing = [index for index, row in enumerate(rows) if row.get("image") is None]
    if missing:
        raise ExegeteError(f"example {missing[0]} has no column 'image'; it has: {', '.join(rows[missing[0]])}")
    pictures = [row["image"].convert("RGB" if model.config.num_channels == 3 else "L") for row in rows]
    pixels = model.processing_class(images=pictures, return_tensors="pt")["pixel_values"].to(model.dtype)
    height, width = (size // model.config.patch_size for size in pixels.shape[-2:])
    leading = count_leading_tokens(model.model)
    attended = torch.ones(len(rows), leading + height * width, dtype=torch.bool)
    content = attended.clone()
    content[:, :leading] = False
    labels = _labels(model, rows) if all(row.get("label") is not None for row in rows) else None
    word_of = torch.where(content, content.long().cumsum(1) - 1, -1)
    return Batch({"pixel_values": pixels}, attended, content, word_of, labels=labels, image_shape=(height, width))


class _Padding:
    """Rows of uneven length become a grid of the longest one's length."""

    def __init__(self, length: int, *, left: bool) -> None:
        self.length, self.left = length, left

    def __call__(self, rows: Sequence[Tensor], fill: Any) -> Tensor:
        grid = torch.full((len(rows), self.length), fill, dtype=rows[0].dtype)
        starts = self.offsets([len(row) for row in rows]).tolist()
        for line, row, start in zip(grid, rows, starts, strict=True):
            line[start : start + len(row)] = row
        return grid

    def offsets(self, lengths: Sequence[int]) -> Tensor:
        """The column at which each row starts."""
        return self.length - torch.tensor(lengths) if self.left else torch.zeros(len(lengths), dtype=torch.long)
