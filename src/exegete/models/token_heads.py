"""Heads that answer at every token, read where it is asked: tags of stretches of text, words in the place of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from transformers import PreTrainedModel

from exegete.data.alignment import Alignment
from exegete.data.tags import OUTSIDE, split_tag
from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.encoding import encode as encoding
from exegete.models.explained import ExplainedModel
from exegete.models.passes.capture import Capture
from exegete.models.tasks import Classification


class Tagging(Classification):
    """The kind of a stretch of words; its logit is the sum of its words' logits, its probability their product.

    A word is read at its first token, where a kind's logit is that of its likeliest tag (B-, I- or the like). What
    other tasks call logits has one column more than there are kinds: the sum of the words' normalisers.
    """

    name = "tagging"
    is_read_at_positions = True

    def __init__(self, tags: Sequence[str]) -> None:
        kinds = [split_tag(tag)[1] for tag in tags]
        self.kinds = tuple(dict.fromkeys(kinds))
        self.other = torch.tensor([[tag != kind for tag in kinds] for kind in self.kinds])
        """[kinds, tags] Which tags are not the kind's."""

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """[B, kinds + 1]."""
        others = self.other.to(batch.device)
        best = output.logits[..., None, :].masked_fill(others, -torch.inf).amax(-1)
        both = torch.cat([best, output.logits.logsumexp(-1, keepdim=True)], -1)
        return (both * _read(batch)[..., None]).sum(1)

    def sum_over_words(self, values: Tensor, target: Tensor) -> Tensor:
        """Sums [K] of values [words, K, tags] over words and their tags of a kind, or of two (first minus second).

        The values of a word's tag are what its logit is made of; they tell which tag is the kind's likeliest.
        """
        if target.ndim:
            first, second = (self.sum_over_words(values, one) for one in target)
            return first - second
        tags = values.sum(1).masked_fill(self.other.to(values.device)[target], -torch.inf).argmax(-1)
        return values[torch.arange(len(tags)), :, tags].sum(0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[B, kinds] That each word has the kind's likeliest tag; they need not sum to 1."""
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return (precise[..., :-1] - precise[..., -1:]).exp()

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """[B] The likeliest kind."""
        return logits[..., :-1].argmax(-1)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """That each word has the kind's tag."""
        found = self.pick(logits, target)
        return found if self.is_contrast(target) else found - logits[..., -1]


class _ReadWhereAsked(ExplainedModel):
    """A model whose batches say where its head is read."""

    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """The positions at which the head is read, in equal shares."""
        places = _read(batch).to(self.dtype)
        return places / places.sum(1, keepdim=True)


class TaggingModel(_ReadWhereAsked):
    """A token classifier; what is explained is the tag of a stretch of text, such as an entity.

    A row has `text` and `span`, the stretch's first character and the one behind its last. A text alone stands for all
    stretches that the model tags in it. Labels are the kinds of tags without B-, I- and the like. A tagged word that a
    perturbation removes leaves the mask token in its place, where its tag is read.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        self.task: Tagging = Tagging(super().labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """The kinds of tags."""
        return self.task.kinds

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Rows with a text and the span whose tag is asked for, as one batch.

        Raises:
            ExegeteError: also a row without a span, or one whose span covers no token.
        """
        rows = [encoding.example_to_row(example) for example in examples]
        batch = encoding.encode(self, rows, device=device)
        assert batch.alignments is not None
        read = torch.zeros_like(batch.attended)
        for number, (row, alignment) in enumerate(zip(rows, batch.alignments, strict=True)):
            start = int(batch.attended[number].long().argmax())
            read[number, [start + place for place in _places(row, number, alignment)]] = True
        return replace(batch, readout_mask=read)

    @torch.no_grad()
    def expand_examples(self, rows: Sequence[Any]) -> Sequence[Any]:
        """A row for each stretch that is asked for, or that the model tags where none is named."""
        return [one for example in rows for one in self._tagged(dict(encoding.example_to_row(example)))]

    def _tagged(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Words side by side with the same kind, unless a tag begins anew, are one stretch."""
        if row.get("span") is not None:
            return [row]
        batch = encoding.encode(self, [row])
        assert batch.alignments is not None
        alignment = batch.alignments[0]
        with self.evaluation_mode():
            tags = self.model(**self._forward_arguments(batch, Capture())).logits[0].argmax(-1).tolist()
        spans, before = list[list[int]](), (OUTSIDE, -1)
        for word, place in _first_tokens(alignment, 0, len(alignment.texts[0])):
            prefix, kind = split_tag(super().labels[tags[place]])
            start, end = alignment.words[word].span_without_punctuation
            if kind != OUTSIDE and (kind, word - 1) == before and prefix not in tuple("BSU"):
                spans[-1][1] = end
            elif kind != OUTSIDE:
                spans.append([start, end])
            before = (kind, word)
        return [row | {"span": span} for span in spans]


class MaskedModel(_ReadWhereAsked):
    """A masked language model, explained in the word that it fills in for a mask token of the text.

    Labels are the words of its vocabulary. Of several masks a row's `mask` says which, from 0; the others stay.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        self.task = MaskedWord()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The vocabulary, in the order of its ids."""
        words = self.tokenizer.convert_ids_to_tokens(range(min(len(self.tokenizer), self.config.vocab_size)))
        missing = [f"[{number}]" for number in range(len(words), self.config.vocab_size)]
        return tuple(word or f"[{number}]" for number, word in enumerate(words)) + tuple(missing)

    def label_id(self, label: SupportsIndex | str) -> int:
        """The id of a word, given by itself or by its id."""
        if not isinstance(label, str):
            if not 0 <= int(label) < self.config.vocab_size:
                raise ExegeteError(f"expected an id below {self.config.vocab_size}, got {int(label)}")
            return int(label)
        known = self.tokenizer.get_vocab()
        pieces = self.tokenizer.tokenize(f"x {label}")[len(self.tokenizer.tokenize("x")) :]
        word = label if label in known else pieces[0] if len(pieces) == 1 else self.tokenizer.unk_token
        if word == self.tokenizer.unk_token:
            raise ExegeteError(f"{label!r} is no single token of the model, but {pieces}: choose another word")
        return int(known[word])

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Texts with a mask token as one batch.

        Raises:
            ExegeteError: also a text without a mask, or with fewer than the row's `mask` says.
        """
        rows = [encoding.example_to_row(example) for example in examples]
        batch = encoding.encode(self, rows, device=device)
        masks = batch.inputs["input_ids"] == self.tokenizer.mask_token_id
        wanted = torch.tensor([int(row.get("mask") or 0) for row in rows], device=batch.device)
        read = masks & (masks.cumsum(1) == wanted[:, None] + 1)
        for number in (read.sum(1) == 0).nonzero().flatten().tolist():
            raise ExegeteError(
                f"example {number} has {int(masks[number].sum())} masks and is asked for number {int(wanted[number])} "
                f"(from 0): write {self.tokenizer.mask_token} in the place of the word to fill in"
            )
        return replace(batch, readout_mask=read)


class MaskedWord(Classification):
    """The word in the place of a mask."""

    name = "masked"
    is_read_at_positions = True

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """[B, vocabulary]."""
        place = _read(batch).long().argmax(1)
        logits: Tensor = output.logits[torch.arange(len(batch), device=batch.device), place]
        return logits


def _read(batch: Batch) -> Tensor:
    if batch.readout_mask is None:
        raise ExegeteError("a head over tokens needs to know where it is read: encode rows, or set `read` of the batch")
    return batch.readout_mask


def _places(row: Mapping[str, Any], number: int, alignment: Alignment) -> list[int]:
    """The tokens at which a row's stretch is read."""
    span = row.get("span")
    if span is None:
        raise ExegeteError(f"example {number} has no 'span', the stretch of the text whose tag is explained")
    places = [place for _, place in _first_tokens(alignment, *span)] if span[0] < span[1] else []
    if not places:
        raise ExegeteError(f"example {number}: its span {list(span)} covers no token of {alignment.texts[0]!r:.80}")
    return places


def _first_tokens(alignment: Alignment, start: int, end: int) -> list[tuple[int, int]]:
    """(word, token): the first token of each word in a stretch of the text; punctuation only where there is no more."""
    found = dict[int, int]()
    text = alignment.texts[0]
    for place, (span, word) in enumerate(zip(alignment.spans, alignment.word_of, strict=True)):
        if span is None or word < 0 or span[2] <= start or span[1] >= end:
            continue
        bare = found.get(word)
        if bare is None or not _lettered(text, alignment.spans[bare]):
            found[word] = place if bare is None or _lettered(text, span) else bare
    return sorted(found.items())


def _lettered(text: str, span: tuple[int, int, int] | None) -> bool:
    return span is not None and any(map(str.isalnum, text[span[1] : span[2]]))
