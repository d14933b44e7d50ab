"""Padded inputs with the positions that can carry attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from exegete.data.alignment import Alignment
from exegete.data.exchange import Exchange
from exegete.errors import ExegeteError

TENSORS = (
    "attended",
    "content",
    "word_of",
    "rationale_mask",
    "has_rationale",
    "labels",
    "answerable",
    "response",
    "unit_of",
    "foil",
    "readout_mask",
    "decoder_mask",
)
PER_POSITION = frozenset(
    {
        "attended",
        "content",
        "word_of",
        "rationale_mask",
        "answerable",
        "response",
        "unit_of",
        "readout_mask",
        "decoder_mask",
    }
    | {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
)


@dataclass(frozen=True)
class Batch:
    """B padded examples of at most L positions.

    `inputs`: what the model's forward takes (`input_ids` [B, L], `attention_mask`, ... or `pixel_values` [B, 3, h, w]).
    `attended` [B, L] bool: real positions (no padding). `content` [B, L] bool: those that can carry attribution (no
    special tokens either). `word_of` [B, L] long: index of each position's word in its example, -1 for none.
    `rationale_mask` [B, L] bool: positions that people marked; `has_rationale` [B]: somebody looked.
    `labels` [B] (class or value) or [B, 2] (token span; -1 when it lies outside). `answerable` [B, L]: where a span
    may lie. `image_shape`: the grid of patches. `response` [B, L] bool: tokens of generated text, which
    are explained and never removed; `foil` [B, R]: a token in the place of each, to explain the difference. `unit_of`
    [B, L] long: each position's source (or sentence), where that was decided elsewhere, -1 for none. `exchanges`:
    prompts and responses as text. `readout_mask` [B, L] bool: where a head over tokens is read. `decoder_mask` [B, L]
    bool: what the decoder of an encoder-decoder reads behind the encoder's tokens, its start and the response.
    """

    inputs: dict[str, Tensor]
    attended: Tensor
    content: Tensor
    word_of: Tensor
    alignments: tuple[Alignment, ...] | None = None
    rationale_mask: Tensor | None = None
    has_rationale: Tensor | None = None
    labels: Tensor | None = None
    answerable: Tensor | None = None
    image_shape: tuple[int, int] | None = None
    response: Tensor | None = None
    unit_of: Tensor | None = None
    foil: Tensor | None = None
    exchanges: tuple[Exchange, ...] | None = None
    readout_mask: Tensor | None = None
    decoder_mask: Tensor | None = None

    @classmethod
    def from_ids(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        content: Tensor | None = None,
        response: Tensor | None = None,
        unit_of: Tensor | None = None,
        decoder_mask: Tensor | None = None,
    ) -> Self:
        """A batch from token ids [B, L] made elsewhere.

        Without `attention_mask` every position is real; without `content` every real position but the `response`, and
        what an encoder-decoder has `decoder_mask` before it, can carry attribution, special tokens included, because
        ids alone do not tell them apart. Every content position is a word of its own.

        Raises:
            ExegeteError: a response that is empty or starts where nothing stands before it.
        """
        attended = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        inputs = {"input_ids": input_ids, "attention_mask": attended.long()}
        optional = {"token_type_ids": token_type_ids, "position_ids": position_ids}
        inputs |= {name: value for name, value in optional.items() if value is not None}
        response = None if response is None else _checked_response(response.bool(), attended)
        decoder_mask = None if decoder_mask is None else decoder_mask.bool() & attended
        made = cls(
            inputs, attended, attended, attended.long(), response=response, unit_of=unit_of, decoder_mask=decoder_mask
        )
        content = made.prompt_mask if content is None else content.bool() & attended
        return replace(made, content=content, word_of=torch.where(content, content.long().cumsum(1) - 1, -1))

    def __len__(self) -> int:
        """B, the number of examples."""
        return len(self.attended)

    @property
    def length(self) -> int:
        """The padded length L of the batch."""
        return self.attended.shape[1]

    @property
    def device(self) -> torch.device:
        """The device that the batch's tensors are on."""
        return self.attended.device

    @property
    def erasable(self) -> Tensor:
        """[B, L] Content that metrics may take away: what is removable; of a question on a context only that."""
        return self.removable if self.answerable is None else self.removable & self.answerable

    @property
    def prompt_mask(self) -> Tensor:
        """[B, L] Real positions before a response, or before what a decoder reads: the prompt; else all."""
        marks = [mark for mark in (self.response, self.decoder_mask) if mark is not None]
        return self.attended & ~torch.stack(marks).any(0) if marks else self.attended

    @property
    def removable(self) -> Tensor:
        """[B, L] Content that perturbations may take away: all but a response."""
        return self.content if self.response is None else self.content & ~self.response

    def to(self, device: torch.device | str) -> Self:
        """The same batch with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device))

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """The examples at `rows` [K], in that order; a row may come more than once."""
        index = torch.as_tensor(rows, device=self.device)
        chosen, order = self._map(lambda tensor: tensor[index]), index.tolist()
        alignments = None if self.alignments is None else tuple(self.alignments[row] for row in order)
        exchanges = None if self.exchanges is None else tuple(self.exchanges[row] for row in order)
        return replace(chosen, alignments=alignments, exchanges=exchanges)

    def trim_padding(self) -> tuple[Self, slice]:
        """The batch without columns that are padding in every row, and the columns that stayed."""
        used = self.attended.any(0).nonzero().flatten()
        start, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, self.length)
        if stop - start == self.length:
            return self, slice(0, self.length)
        columns = slice(start, stop)
        return self._map(lambda tensor: tensor[:, columns], PER_POSITION), columns

    def _map(self, change: Callable[[Tensor], Tensor], names: frozenset[str] | None = None) -> Self:
        """Every tensor, or those called `names`, through `change`."""

        def changed(name: str, value: Tensor) -> Tensor:
            return change(value) if names is None or name in names else value

        tensors: dict[str, Any] = {
            name: changed(name, value) for name in TENSORS if (value := getattr(self, name)) is not None
        }
        inputs = {name: changed(name, value) for name, value in self.inputs.items()}
        return replace(self, inputs=inputs, **tensors)


def _checked_response(response: Tensor, attended: Tensor) -> Tensor:
    """The response's mask, when each row has one that is real and has a real position before it."""
    starts = response & ~response.roll(1, 1)
    before = attended.roll(1, 1)
    before[:, 0] = False
    if not (response.any(1).all() and (attended | ~response).all() and (before | ~starts).all()):
        raise ExegeteError("expected a response of one token at least in every row, after a prompt and without padding")
    if (starts.sum(1) > 1).any():
        raise ExegeteError("expected a response's tokens side by side")
    return response
