"""Retokenization: a masking model reads texts in its own tokens, and scores are transferred back by characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from expound.data.alignment import map_tokens
from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel
from expound.models.loading.checkpoint import get_tokenizer_definition
from expound.models.prompted import PromptedModel

Aggregation = Literal["max", "mean"]


@dataclass(frozen=True)
class RetokenizedBatch:
    """B texts in the masking model's own tokens, and the correspondence with the explained model's tokens.

    `own`: the batch in the masking model's tokens. `sources` [B, L, K]: for each position of the explained model the
    positions of `own` that share its characters, padded with −1. None: both have the same positions.
    """

    own: Batch
    sources: Tensor | None = None

    def map_scores(self, scores: Tensor, how: Aggregation = "max") -> Tensor:
        """Return scores of the explained model's positions [B, L] from the network's [B, L']; 0 without a match."""
        if self.sources is None:
            return scores
        exists = self.sources >= 0
        rows = torch.arange(len(scores), device=scores.device)[:, None, None]
        shared = scores[rows, self.sources.clamp(min=0)]
        if how == "mean":
            return shared.masked_fill(~exists, 0.0).sum(-1) / exists.sum(-1).clamp(min=1)
        return shared.masked_fill(~exists, -torch.inf).amax(-1).masked_fill(~exists.any(-1), 0.0)


class Retokenizer:
    """Encodes the texts of an explained model's batches for a masking model.

    If both tokenizers are the same, the explained model's batch is returned.
    """

    def __init__(self, reader: ExplainedModel) -> None:
        self.reader = reader
        self._compared: tuple[Any, bool] = (None, False)

    def __call__(self, model: ExplainedModel, batch: Batch) -> RetokenizedBatch:
        """Return the batch's texts in the masking model's tokens, on the batch's device.

        Raises:
            ExpoundError: images, or token ids without texts that belong to another tokenizer or are too many.
        """
        if model.modality != "text":
            raise ExpoundError("attributive_masking reads words: it does not apply to images")
        same, limit = self._same(model), self.reader.max_length
        if same and batch.length <= limit:
            return RetokenizedBatch(batch)
        if batch.alignments is None:
            reason = "has another tokenizer than the explained one"
            if same:
                reason = f"reads at most {limit} tokens, not {batch.length}"
            raise ExpoundError(
                f"the masking model {reason}, and token ids alone do not contain the text: encode texts instead"
            )
        texts: list[str | tuple[str, ...]] = []
        for item in batch.alignments:
            texts.append(item.texts if len(item.texts) > 1 else item.texts[0])
        own = self.reader.encode(texts)
        assert own.alignments is not None
        maps = [map_tokens(mine, theirs) for mine, theirs in zip(own.alignments, batch.alignments, strict=True)]
        return RetokenizedBatch(own.to(batch.device), _grid(maps, batch).to(batch.device))

    def _same(self, model: ExplainedModel) -> bool:
        """Return whether the explained model has the masking model's tokenizer and adds no prompt."""
        tokenizer = model.processing_class
        if isinstance(model, PromptedModel) or model.is_decoder or tokenizer is None:
            return False
        # Comparing definitions takes milliseconds, so the last result is kept.
        if self._compared[0] is not tokenizer:
            self._compared = (
                tokenizer,
                get_tokenizer_definition(tokenizer) == get_tokenizer_definition(self.reader.tokenizer),
            )
        return self._compared[1]


def _grid(maps: list[list[list[int]]], batch: Batch) -> Tensor:
    """Return the map of each example's real tokens as [B, L, K], padded with −1; only content has entries."""
    # At least 1, also if no token is mapped.
    most = 1
    for rows in maps:
        most = max([most, *map(len, rows)])
    grid = torch.full((len(maps), batch.length, most), -1)
    starts = batch.attended.long().argmax(1).tolist()
    for line, rows, start in zip(grid, maps, starts, strict=True):
        for position, row in enumerate(rows, start):
            line[position, : len(row)] = torch.tensor(row, dtype=torch.long)
    return grid.masked_fill(~batch.content.cpu()[..., None], -1)
