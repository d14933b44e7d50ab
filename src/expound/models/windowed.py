"""Texts that are longer than their model, read in overlapping windows; the prediction is the mean over the windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from expound.data.alignment import Alignment
from expound.errors import ExpoundError
from expound.models.batch import PER_POSITION, Batch, Capture, Outputs
from expound.models.explained import ExplainedModel
from expound.models.hugging_face import UNLIMITED


@dataclass(frozen=True)
class Windows:
    """W windows of at most K positions over a batch of B rows and L positions.

    Args:
        batch: the windows as rows.
        owner: [W] the row of each window.
        columns: [W, K] the positions of each window in its row.
        real: [W, K] whether the window has a position there.
        rows: B.
        length: L.
    """

    batch: Batch
    owner: Tensor
    columns: Tensor
    real: Tensor
    rows: int
    length: int

    def gather(self, values: Tensor) -> Tensor:
        """Return the windows' values [W, K, …] of values [B, L, …]."""
        return values[self.owner[:, None], self.columns]

    def mean_logits(self, logits: Tensor) -> Tensor:
        """Return the mean [B, C] over each row's windows of logits [W, C]."""
        total = logits.new_zeros(self.rows, *logits.shape[1:]).index_add(0, self.owner, logits)
        return total / torch.bincount(self.owner, minlength=self.rows)[:, None]

    def mean_scores(self, scores: Tensor) -> Tensor:
        """Return each position's mean, [B, L] or [B, N, L], over its windows' scores [W, K] or [W, N, K]."""
        own = scores.movedim(-1, 1)
        place = (self.owner[:, None], self.columns)
        real = self.real
        count = own.new_zeros(self.rows, self.length).index_put(place, real.to(own.dtype), accumulate=True)
        count = count.clamp(min=1)
        if own.ndim > 2:
            real, count = real[..., None], count[..., None]
        total = own.new_zeros(self.rows, self.length, *own.shape[2:])
        total = total.index_put(place, own.where(real, 0), accumulate=True)
        return (total / count).movedim(1, -1)


class WindowedModel(ExplainedModel):
    """A model that reads a long text in windows, and predicts the mean of their logits.

    Windows are made by transformers' tokenizers (`stride`, `return_overflowing_tokens`): each has the special tokens
    and as many of the text's tokens as fit. Of a pair the longer text is cut, and every window has all of the other
    one. If tokens are removed, windows are made of the remaining tokens.

    Args:
        model: a model whose head reads a whole text, with its tokenizer.
        stride: the number of tokens that neighboring windows share.

    Raises:
        ExpoundError: another kind of model; a stride that leaves no room for new tokens in a window.
    """

    def __init__(self, model: ExplainedModel, stride: int) -> None:
        if type(model) is not ExplainedModel or model.modality != "text" or model.task.reads_context:
            raise ExpoundError(
                f"windows are for heads that read a whole text, not for {model.task.name}: leave stride out"
            )
        super().__init__(model.model, model.processing_class, model.task.name, model.requested_max_length)
        self.task, self.stride, self.is_checked = model.task, stride, model.is_checked
        most = self.window - self.tokenizer.num_special_tokens_to_add()
        if not 0 <= stride < most:
            raise ExpoundError(f"expected a stride from 0 to {most - 1} tokens, fewer than a window's, got {stride}")

    @property
    def window(self) -> int:
        """The most tokens of a window, special tokens included."""
        return super().max_length

    @property
    def max_length(self) -> int:
        """Unlimited: texts are not cut off."""
        return UNLIMITED

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of any model, with window and stride."""
        return super().settings | {"max_length": self.window, "stride": self.stride}

    @property
    def window_model(self) -> ExplainedModel:
        """The same model without windows, which reads one window at a time."""
        model = ExplainedModel(self.model, self.processing_class, self.task.name, self.requested_max_length)
        model.task, model.is_checked = self.task, self.is_checked
        return model

    def encode(self, examples: Any, device: str | torch.device | None = None) -> Batch:
        """Encode whole texts as one padded batch.

        Raises:
            ExpoundError: also a long text with special tokens written in it; a long pair without a special token
                between its texts, or whose shorter text leaves no room.
        """
        batch = super().encode(examples, device)
        for index, (alignment, content) in enumerate(zip(batch.alignments or (), batch.content, strict=True)):
            if len(alignment.tokens) > self.window:
                # Windows are cut at special tokens, so a written one would be taken for the end of the text.
                written = sum(span is not None for span in alignment.spans) - int(content.sum())
                if written:
                    raise ExpoundError(f"example {index} is long and has special tokens in its text: leave stride out")
                if len(alignment.texts) > 1 and not self._separates_texts:
                    raise ExpoundError(f"example {index} is a long pair, and nothing parts its texts: leave stride out")
        self.make_windows(batch)
        return batch

    @property
    def _separates_texts(self) -> bool:
        """Whether the tokenizer writes a special token between the texts of a pair."""
        one, two = (self.tokenizer.num_special_tokens_to_add(pair) for pair in (False, True))
        return bool(two > one)

    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """Run one pass over all windows; see `ExplainedModel.forward`.

        Raises:
            ExpoundError: something is to be captured although a row has several windows.
        """
        windows = self.make_windows(batch)
        if windows is None:
            return super().forward(batch, embeddings, capture)
        if capture not in (None, Capture()):
            raise ExpoundError("a text of several windows has several passes: nothing can be captured in them all")
        parts = None if embeddings is None else windows.gather(embeddings)
        return Outputs(windows.mean_logits(super().forward(windows.batch, parts).logits), embeddings)

    def make_windows(self, batch: Batch) -> Windows | None:
        """Return the windows of a batch's rows; None if each row fits."""
        if int(batch.attended.sum(1).max()) <= self.window:
            return None
        special = torch.tensor(sorted(self.special_ids), device=batch.device)
        is_text = ~torch.isin(batch.inputs["input_ids"], special)
        owners: list[int] = []
        cuts: list[Tensor] = []
        for row in range(len(batch)):
            row_cuts = self._cut_row(batch.attended[row], is_text[row])
            owners += [row] * len(row_cuts)
            cuts += row_cuts
        side = "left" if self.is_decoder else "right"
        columns = pad_sequence(cuts, batch_first=True, padding_side=side)
        ones = [torch.ones_like(cut, dtype=torch.bool) for cut in cuts]
        real = pad_sequence(ones, batch_first=True, padding_side=side)
        owner = torch.tensor(owners, device=batch.device)
        return Windows(self._make_rows(batch, owner, columns, real), owner, columns, real, len(batch), batch.length)

    def _cut_row(self, attended: Tensor, is_text: Tensor) -> list[Tensor]:
        """Return the positions of each window of a row: a part of its longest text, and everything else."""
        real = attended.nonzero().flatten()
        if len(real) <= self.window:
            return [real]
        # Texts are the runs between special tokens: they begin where the difference is 1 and end where it is −1.
        edges = torch.nn.functional.pad(is_text[real].long(), (1, 1)).diff()
        starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
        longest = int((ends - starts).argmax())
        first, last = int(starts[longest]), int(ends[longest])
        room = self.window - (len(real) - (last - first))
        if room <= self.stride:
            raise ExpoundError(
                f"both texts of a pair are long: beside the shorter one a window of {self.window} tokens has room for "
                f"{max(0, room)}, not for more than the stride of {self.stride}: shorten that text"
            )
        cuts: list[Tensor] = []
        for begin in range(first, max(first + 1, last - self.stride), room - self.stride):
            cuts.append(torch.cat([real[:first], real[begin : min(begin + room, last)], real[last:]]))
        return cuts

    def _make_rows(self, batch: Batch, owner: Tensor, columns: Tensor, real: Tensor) -> Batch:
        """Return the windows as a batch, in which words and sentences keep their numbers of the whole text."""
        fill = {"input_ids": self.pad_id, "word_of": -1, "unit_of": -1}
        place = (owner[:, None], columns)

        def take(name: str, values: Tensor) -> Tensor:
            if name not in PER_POSITION:
                return values[owner]
            return values[place].masked_fill(~real, fill.get(name, 0))

        # Every window begins at position 0 of the model.
        inputs = {name: take(name, values) for name, values in batch.inputs.items() if name != "position_ids"}
        fields: dict[str, Any] = {}
        for name in ("content", "word_of", "unit_of", "rationale_mask", "has_rationale", "labels"):
            if getattr(batch, name) is not None:
                fields[name] = take(name, getattr(batch, name))
        if batch.alignments is not None:
            # Alignments count tokens without padding.
            ranks = (batch.attended.long().cumsum(1) - 1)[place]
            alignments: list[Alignment] = []
            for window, row in enumerate(owner.tolist()):
                alignments.append(_select_tokens(batch.alignments[row], ranks[window][real[window]].tolist()))
            fields["alignments"] = tuple(alignments)
        return replace(batch, inputs=inputs, attended=real, **fields)


def _select_tokens(alignment: Alignment, tokens: list[int]) -> Alignment:
    return replace(
        alignment,
        tokens=tuple(alignment.tokens[token] for token in tokens),
        spans=tuple(alignment.spans[token] for token in tokens),
        word_of=tuple(alignment.word_of[token] for token in tokens),
    )
