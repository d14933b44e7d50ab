"""Texts longer than their model, read in windows that overlap; the answer is the mean over the windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from exegete.data.alignment import Alignment
from exegete.errors import ExegeteError
from exegete.models.batch import PER_POSITION, Batch
from exegete.models.explained import ExplainedModel
from exegete.models.outputs import Outputs
from exegete.models.passes.capture import Capture

ENDLESS = 1 << 20


@dataclass(frozen=True)
class Windows:
    """W windows of at most K positions of a batch's B rows of L.

    `batch`: them as rows of their own. `owner` [W]: whose window each is. `columns` [W, K]: which positions it has,
    where they are `real` [W, K].
    """

    batch: Batch
    owner: Tensor
    columns: Tensor
    real: Tensor
    rows: int
    length: int

    def gather(self, values: Tensor) -> Tensor:
        """[W, K, ...] of [B, L, ...]."""
        return values[self.owner[:, None], self.columns]

    def mean_logits(self, logits: Tensor) -> Tensor:
        """[B, C] The mean of each row's windows, from [W, C]."""
        total = logits.new_zeros(self.rows, *logits.shape[1:]).index_add(0, self.owner, logits)
        return total / torch.bincount(self.owner, minlength=self.rows)[:, None]

    def mean_scores(self, scores: Tensor) -> Tensor:
        """[B, L] or [B, N, L] The mean over the windows that hold a position, from [W, K] or [W, N, K]."""
        own = scores.movedim(-1, 1)
        real = self.real.view(*self.real.shape, *(1 for _ in own.shape[2:]))
        place = (self.owner[:, None], self.columns)
        total = own.new_zeros(self.rows, self.length, *own.shape[2:])
        total = total.index_put(place, own.where(real, 0), accumulate=True)
        held = own.new_zeros(self.rows, self.length).index_put(place, self.real.to(own.dtype), accumulate=True)
        return (total / held.clamp(min=1).view(*held.shape, *(1 for _ in own.shape[2:]))).movedim(1, -1)


class WindowedModel(ExplainedModel):
    """A model that reads a text longer than itself in windows, and answers with the mean of their logits.

    Windows are those of transformers' tokenizers (`stride`, `return_overflowing_tokens`): each has the special tokens
    and as many of the text's as fit. Of a pair the longer text is cut, and every window has all of the other one. Where
    tokens are removed, windows are made of what stays.

    Args:
        model: a model whose head reads a whole text, with its tokenizer.
        stride: tokens that neighbouring windows share.

    Raises:
        ExegeteError: another kind of model; a stride that leaves a window nothing new.
    """

    def __init__(self, model: ExplainedModel, stride: int) -> None:
        if type(model) is not ExplainedModel or model.modality != "text" or model.task.name == "span":
            raise ExegeteError(
                f"windows are for heads that read a whole text, not for {model.task.name}: leave stride out"
            )
        super().__init__(model.model, model.processing_class, model.task.name, model.requested_max_length)
        self.task, self.stride = model.task, stride
        most = self.window - self.tokenizer.num_special_tokens_to_add()
        if not 0 <= stride < most:
            raise ExegeteError(f"expected a stride from 0 to {most - 1} tokens, fewer than a window's, got {stride}")

    @property
    def window(self) -> int:
        """The tokens of a window at most, special ones included."""
        return super().max_length

    @property
    def max_length(self) -> int:
        """Texts are not cut off."""
        return ENDLESS

    @property
    def settings(self) -> dict[str, Any]:
        """As of any model; and how its windows are made."""
        return super().settings | {"max_length": self.window, "stride": self.stride}

    @property
    def window_model(self) -> ExplainedModel:
        """The model as it reads one window."""
        found = ExplainedModel(self.model, self.processing_class, self.task.name, self.requested_max_length)
        found.task = self.task
        return found

    def encode(self, examples: Any, device: str | torch.device | None = None) -> Batch:
        """Whole texts as one padded batch.

        Raises:
            ExegeteError: as of any model; a long text with special tokens written in it; a long pair whose texts
                nothing parts, or of which the shorter leaves no room.
        """
        batch = super().encode(examples, device)
        for index, (alignment, content) in enumerate(zip(batch.alignments or (), batch.content, strict=True)):
            if len(alignment.tokens) > self.window:
                written = sum(span is not None for span in alignment.spans) - int(content.sum())
                if written:
                    raise ExegeteError(f"example {index} is long and has special tokens in its text: leave stride out")
                if len(alignment.texts) > 1 and not self._parts_texts:
                    raise ExegeteError(f"example {index} is a long pair, and nothing parts its texts: leave stride out")
        self.make_windows(batch)
        return batch

    @property
    def _parts_texts(self) -> bool:
        """Whether the tokenizer puts a special token between the texts of a pair."""
        one, two = (self.tokenizer.num_special_tokens_to_add(pair) for pair in (False, True))
        return bool(two > one)

    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """One pass over all windows; see `ExplainedModel.forward`. What happens in layers is captured of short rows."""
        windows = self.make_windows(batch)
        if windows is None:
            return super().forward(batch, embeddings, capture)
        if capture not in (None, Capture()):
            raise ExegeteError("a text of several windows has several passes: nothing can be captured in them all")
        given = None if embeddings is None else windows.gather(embeddings)
        return Outputs(windows.mean_logits(super().forward(windows.batch, given).logits), embeddings)

    def make_windows(self, batch: Batch) -> Windows | None:
        """The windows of a batch's rows; None where each row fits."""
        sizes = batch.attended.sum(1)
        if int(sizes.max()) <= self.window:
            return None
        special = torch.tensor(sorted(self.special_ids), device=batch.device)
        own = ~torch.isin(batch.inputs["input_ids"], special)
        each = [(row, chosen) for row in range(len(batch)) for chosen in self._cut(batch.attended[row], own[row])]
        lengths = [len(chosen) for _, chosen in each]
        side = "left" if self.is_decoder else "right"
        columns = pad_sequence([chosen for _, chosen in each], batch_first=True, padding_side=side)
        ones = [torch.ones(size, dtype=torch.bool, device=batch.device) for size in lengths]
        real = pad_sequence(ones, batch_first=True, padding_side=side)
        owner = torch.tensor([row for row, _ in each], device=batch.device)
        return Windows(self._rows(batch, owner, columns, real), owner, columns, real, len(batch), batch.length)

    def _cut(self, attended: Tensor, own: Tensor) -> list[Tensor]:
        """The positions of each window of a row: all that is not in the longest stretch of text, and a part of that."""
        at = attended.nonzero().flatten()
        if len(at) <= self.window:
            return [at]
        text = own[at].long()
        edges = torch.nn.functional.pad(text, (1, 1)).diff()
        starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
        longest = int((ends - starts).argmax())
        first, last = int(starts[longest]), int(ends[longest])
        room = self.window - (len(at) - (last - first))
        if room <= self.stride:
            raise ExegeteError(
                f"both texts of a pair are long: beside the shorter one a window of {self.window} tokens has room for "
                f"{max(0, room)}, not for more than the stride of {self.stride}: shorten that text"
            )
        begins = range(first, max(first + 1, last - self.stride), room - self.stride)
        return [torch.cat([at[:first], at[begin : min(begin + room, last)], at[last:]]) for begin in begins]

    def _rows(self, batch: Batch, owner: Tensor, columns: Tensor, real: Tensor) -> Batch:
        """Windows as a batch: numbers of words and sentences are those of the whole text."""
        fill = {"input_ids": self.pad_id, "word_of": -1, "unit_of": -1}
        place = (owner[:, None], columns)

        def taken(name: str, values: Tensor) -> Tensor:
            if name not in PER_POSITION:
                return values[owner]
            return values[place].masked_fill(~real, fill.get(name, 0))

        inputs = {name: taken(name, values) for name, values in batch.inputs.items() if name != "position_ids"}
        marks = ("content", "word_of", "unit_of", "rationale_mask", "has_rationale", "labels")
        found: dict[str, Any] = {
            name: taken(name, values) for name in marks if (values := getattr(batch, name)) is not None
        }
        aligned = None
        if batch.alignments is not None:
            ranks = (batch.attended.long().cumsum(1) - 1)[place]
            numbers = zip(owner.tolist(), ranks, real, strict=True)
            aligned = tuple(_part(batch.alignments[row], rank[here].tolist()) for row, rank, here in numbers)
        return replace(batch, inputs=inputs, attended=real, alignments=aligned, **found)


def _part(whole: Alignment, chosen: list[int]) -> Alignment:
    """The alignment of some of its tokens."""
    return replace(
        whole,
        tokens=tuple(whole.tokens[at] for at in chosen),
        spans=tuple(whole.spans[at] for at in chosen),
        word_of=tuple(whole.word_of[at] for at in chosen),
    )
