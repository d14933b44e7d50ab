"""Models whose head answers at every token: token classifiers and masked language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, SupportsIndex

import torch
from torch import Tensor
from transformers import PreTrainedModel

from expound.data.alignment import Alignment
from expound.data.spans import OUTSIDE, split_tag
from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture, to_float32
from expound.models.encoding import encode as encoding
from expound.models.explained import ExplainedModel
from expound.models.tasks import Classification, Task

MASK = "{mask}"
"""The place of the mask token in the sample of a task."""


class Tagging(Classification):
    """The tag of several words, such as an entity; its logit is the sum of their logits, its probability the product.

    A word is read at its first token, where the logit of a label (PER) is the largest logit of its tags (B-PER, …).
    The "logits" [B, labels + 1] have a last column with the sum of the words' normalizers.
    """

    name = "tagging"
    is_read_at_positions = True
    tags_spans = True
    sample: ClassVar = {**Task.sample, "span": [2, 7]}
    properties: ClassVar = Task.properties

    def __init__(self, tags: Sequence[str]) -> None:
        label_of = [split_tag(tag)[1] for tag in tags]
        self.kinds = tuple(dict.fromkeys(label_of))
        number_of = torch.tensor([self.kinds.index(label) for label in label_of])
        self.other = number_of != torch.arange(len(self.kinds))[:, None]
        """[labels, tags] Whether a tag is not one of the label."""

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits [B, labels + 1]."""
        others = self.other.to(batch.device)
        best = output.logits[..., None, :].masked_fill(others, -torch.inf).amax(-1)
        both = torch.cat([best, output.logits.logsumexp(-1, keepdim=True)], -1)
        return (both * _require_readout_mask(batch)[..., None]).sum(1)

    def sum_over_words(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the sums [K] of values [words, K, tags] over words, each at the likeliest tag of the target label.

        Args:
            values: K parts that a word's logits are made of; their sum over K says which tag is the likeliest.
            target: a label, or a contrast, whose sums are subtracted.
        """
        if target.ndim:
            first, second = (self.sum_over_words(values, label) for label in target)
            return first - second
        tags = values.sum(1).masked_fill(self.other.to(values.device)[target], -torch.inf).argmax(-1)
        return values[torch.arange(len(tags)), :, tags].sum(0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities [B, labels] that each word has the label's likeliest tag; they need not sum to 1."""
        precise = to_float32(logits)
        return (precise[..., :-1] - precise[..., -1:]).exp()

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the likeliest label [B]."""
        return logits[..., :-1].argmax(-1)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the log-probability [..., B] that each word has the label's likeliest tag."""
        picked = self.pick(logits, target)
        # In a contrast the normalizer cancels out.
        return picked if self.is_contrast(target) else picked - logits[..., -1]


class _TokenHeadModel(ExplainedModel):
    """A model whose batches have a `readout_mask`."""

    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Return equal weights [B, L] of the positions at which the head is read."""
        mask = _require_readout_mask(batch).to(self.dtype)
        return mask / mask.sum(1, keepdim=True)


class TaggingModel(_TokenHeadModel):
    """A token classifier, explained in the tag of a span of text, such as an entity.

    A row has `text` and `span`, the first character and the one after the last. A text without a span means all spans
    that the model tags in it. Labels are tags without B-, I- and similar prefixes. A tagged word that a perturbation
    removes leaves the mask token in its place, where its tag is read.

    Args:
        model: a token classifier.
        processing_class: its tokenizer.
        max_length: the most tokens of a text, if fewer than the model allows.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        self.task: Tagging = Tagging(super().labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags without prefixes."""
        return self.task.kinds

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode rows with a text and the span whose tag is explained as one batch.

        Raises:
            ExpoundError: also a row without a span, or one whose span covers no token.
        """
        rows = [encoding.example_to_row(example) for example in examples]
        batch = encoding.encode(self, rows, device=device)
        assert batch.alignments is not None
        mask = torch.zeros_like(batch.attended)
        for number, (row, alignment) in enumerate(zip(rows, batch.alignments, strict=True)):
            padding = int(batch.attended[number].long().argmax())
            places = torch.tensor(_find_span_tokens(row, number, alignment))
            mask[number, places + padding] = True
        return replace(batch, readout_mask=mask)

    @torch.no_grad()
    def expand_examples(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return one row per span: the row's own span, or every span that the model tags in its text."""
        expanded: list[dict[str, Any]] = []
        for example in rows:
            row = dict(encoding.example_to_row(example))
            expanded += [row] if row.get("span") is not None else self._predict_spans(row)
        return expanded

    def _predict_spans(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one row per span of neighboring words with the same label."""
        batch = encoding.encode(self, [row])
        assert batch.alignments is not None
        alignment = batch.alignments[0]
        with self.evaluation_mode():
            # Not `forward`, whose logits are already sums over a span.
            tags = self.model(**self._forward_arguments(batch, Capture())).logits[0].argmax(-1).tolist()
        spans: list[list[int]] = []
        before = (OUTSIDE, -1)
        for word, place in _find_first_tokens(alignment, 0, len(alignment.texts[0])):
            prefix, label = split_tag(super().labels[tags[place]])
            start, end = alignment.words[word].span_without_punctuation
            # In the schemes BIO, BILOU and BIOES these prefixes begin an entity.
            is_new = prefix in ("B", "S", "U")
            if label != OUTSIDE and (label, word - 1) == before and not is_new:
                spans[-1][1] = end
            elif label != OUTSIDE:
                spans.append([start, end])
            before = (label, word)
        return [row | {"span": span} for span in spans]


class MaskedWord(Classification):
    """The word in the place of a mask token."""

    name = "masked"
    is_read_at_positions = True
    sample: ClassVar = {"text": f"A short {MASK}."}
    properties: ClassVar = Task.properties

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits [B, vocabulary] at the mask token."""
        place = _require_readout_mask(batch).long().argmax(1)
        logits: Tensor = output.logits[torch.arange(len(batch), device=batch.device), place]
        return logits


class MaskedModel(_TokenHeadModel):
    """A masked language model, explained in the word that it predicts for a mask token of the text.

    Labels are the words of its vocabulary. If a text has several masks, the row's `mask` is the number of the explained
    one, from 0; the others stay.

    Args:
        model: a masked language model.
        processing_class: its tokenizer.
        max_length: the most tokens of a text, if fewer than the model allows.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        self.task = MaskedWord()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The vocabulary, in the order of its ids."""
        size = self.config.get_text_config().vocab_size
        words = self.tokenizer.convert_ids_to_tokens(range(min(len(self.tokenizer), size)))
        # Embeddings are often padded to a round number, and some ids have no token.
        words += [None] * (size - len(words))
        return tuple(word or f"[{number}]" for number, word in enumerate(words))

    def label_id(self, label: SupportsIndex | str) -> int:
        """Return the id of a word that is given as a text or by its id.

        Raises:
            ExpoundError: no such id, or a word of several tokens.
        """
        if not isinstance(label, str):
            if not 0 <= int(label) < self.config.get_text_config().vocab_size:
                raise ExpoundError(f"expected an id below {self.config.get_text_config().vocab_size}, got {int(label)}")
            return int(label)
        known = self.tokenizer.get_vocab()
        # Tokenized after another word: inside a text, most tokenizers count the space before a word as part of it.
        pieces = self.tokenizer.tokenize(f"x {label}")[len(self.tokenizer.tokenize("x")) :]
        word = self.tokenizer.unk_token
        if label in known:
            word = label
        elif len(pieces) == 1:
            word = pieces[0]
        if word == self.tokenizer.unk_token:
            raise ExpoundError(f"{label!r} is no single token of the model, but {pieces}: choose another word")
        return int(known[word])

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode texts with a mask token as one batch.

        Raises:
            ExpoundError: also a text without a mask, or with fewer masks than the row's `mask` needs.
        """
        rows = [encoding.example_to_row(example) for example in examples]
        batch = encoding.encode(self, rows, device=device)
        masks = batch.inputs["input_ids"] == self.tokenizer.mask_token_id
        numbers = torch.tensor([int(row.get("mask") or 0) for row in rows], device=batch.device)
        readout_mask = masks & (masks.cumsum(1) == numbers[:, None] + 1)
        for row in (readout_mask.sum(1) == 0).nonzero().flatten().tolist():
            raise ExpoundError(
                f"example {row} has {int(masks[row].sum())} masks and is asked for number {int(numbers[row])} "
                f"(from 0): write {self.tokenizer.mask_token} in the place of the word to fill in"
            )
        return replace(batch, readout_mask=readout_mask)


def _require_readout_mask(batch: Batch) -> Tensor:
    if batch.readout_mask is None:
        raise ExpoundError(
            "a head over tokens needs to know where it is read: encode rows, or set `readout_mask` of the batch"
        )
    return batch.readout_mask


def _find_span_tokens(row: Mapping[str, Any], number: int, alignment: Alignment) -> list[int]:
    """Return the tokens at which a row's span is read."""
    span = row.get("span")
    if span is None:
        raise ExpoundError(f"example {number} has no 'span', the stretch of the text whose tag is explained")
    places = []
    if span[0] < span[1]:
        places = [place for _, place in _find_first_tokens(alignment, *span)]
    if not places:
        raise ExpoundError(f"example {number}: its span {list(span)} covers no token of {alignment.texts[0]!r:.80}")
    return places


def _find_first_tokens(alignment: Alignment, start: int, end: int) -> list[tuple[int, int]]:
    """Return (word, token) for the first token of each word between two characters of the text."""
    first = dict[int, int]()
    text = alignment.texts[0]
    for place, (span, word) in enumerate(zip(alignment.spans, alignment.word_of, strict=True)):
        if span is None or word < 0 or span[2] <= start or span[1] >= end:
            continue
        # The token of a quotation mark before a word is passed over, since its tag says nothing about the word.
        if word not in first or (_has_letter(text, span) and not _has_letter(text, alignment.spans[first[word]])):
            first[word] = place
    return sorted(first.items())


def _has_letter(text: str, span: tuple[int, int, int] | None) -> bool:
    return span is not None and any(map(str.isalnum, text[span[1] : span[2]]))
