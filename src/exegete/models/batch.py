"""Padded inputs with the positions that can carry attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from exegete.data.alignment import Alignment

TENSORS = ("attended", "content", "word_of", "rationale", "has_rationale", "labels", "answerable")
PER_POSITION = frozenset(
    {"attended", "content", "word_of", "rationale", "answerable"}
    | {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
)


@dataclass(frozen=True)
class Batch:
    """B padded examples of at most L positions.

    `inputs`: what the model's forward takes (`input_ids` [B, L], `attention_mask`, ... or `pixel_values` [B, 3, h, w]).
    `attended` [B, L] bool: real positions (no padding). `content` [B, L] bool: those that can carry attribution (no
    special tokens either). `word_of` [B, L] long: index of each position's word in its example, -1 for none.
    `rationale` [B, L] bool: positions that people marked; `has_rationale` [B]: somebody looked.
    `labels` [B] (class or value) or [B, 2] (token span; -1 when it lies outside). `answerable` [B, L]: where a span
    may lie. `image_shape`: the grid of patches.
    """

    inputs: dict[str, Tensor]
    attended: Tensor
    content: Tensor
    word_of: Tensor
    alignments: tuple[Alignment, ...] | None = None
    rationale: Tensor | None = None
    has_rationale: Tensor | None = None
    labels: Tensor | None = None
    answerable: Tensor | None = None
    image_shape: tuple[int, int] | None = None

    @classmethod
    def from_ids(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        content: Tensor | None = None,
    ) -> Self:
        """A batch from token ids [B, L] made elsewhere.

        Without `attention_mask` every position is real; without `content` every real position can carry attribution,
        special tokens included, because ids alone do not tell them apart. Every content position is a word of its own.
        """
        attended = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        inputs = {"input_ids": input_ids, "attention_mask": attended.long()}
        optional = {"token_type_ids": token_type_ids, "position_ids": position_ids}
        inputs |= {name: value for name, value in optional.items() if value is not None}
        content = attended if content is None else content.bool() & attended
        word_of = torch.where(content, content.long().cumsum(1) - 1, -1)
        return cls(inputs, attended, content, word_of)

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
        """[B, L] Content that may be taken away: all of it; of a question on a context, the context alone."""
        return self.content if self.answerable is None else self.content & self.answerable

    def to(self, device: torch.device | str) -> Self:
        """The same batch with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device))

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """The examples at `rows`, in that order; a row may come more than once."""
        index = torch.as_tensor(rows, device=self.device)
        chosen = self._map(lambda tensor: tensor[index])
        if self.alignments is None:
            return chosen
        return replace(chosen, alignments=tuple(self.alignments[row] for row in index.tolist()))

    def trimmed(self) -> tuple[Self, slice]:
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
