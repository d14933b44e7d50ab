"""How a masking model reads what another model is asked: with its own tokens, and scores that find their way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from exegete.data.token_map import map_tokens
from exegete.errors import ExegeteError
from exegete.models import Batch, ExplainedModel
from exegete.models.loading.digest import get_tokenizer_definition
from exegete.models.prompted import PromptedModel

Aggregation = Literal["max", "mean"]


@dataclass(frozen=True)
class RetokenizedBatch:
    """B texts in the masking model's own tokens, `own`, and where the explained model's tokens are among them.

    `sources` [B, L, K]: for every position of the explained model the positions of `own` that share its characters, −1
    where there are fewer than K. None: both have the same positions.
    """

    own: Batch
    sources: Tensor | None = None

    def map_scores(self, scores: Tensor, how: Aggregation = "max") -> Tensor:
        """Scores of own positions [B, L'] as scores of the explained model's [B, L]; 0 where nothing is shared."""
        if self.sources is None:
            return scores
        there = self.sources >= 0
        rows = torch.arange(len(scores), device=scores.device)[:, None, None]
        found = scores[rows, self.sources.clamp(min=0)]
        if how == "mean":
            return found.masked_fill(~there, 0.0).sum(-1) / there.sum(-1).clamp(min=1)
        return found.masked_fill(~there, -torch.inf).amax(-1).masked_fill(~there.any(-1), 0.0)


class Retokenizer:
    """Reads batches of explained models for a masking model.

    Where both tokenizers are the same, the explained model's own ids are taken as they are.
    """

    def __init__(self, reader: ExplainedModel) -> None:
        self.reader = reader
        self._compared: tuple[Any, bool] = (None, False)

    def __call__(self, model: ExplainedModel, batch: Batch) -> RetokenizedBatch:
        """The batch's texts, on the batch's device.

        Raises:
            ExegeteError: images, or token ids of another tokenizer, or too many, without their texts.
        """
        if model.modality != "text":
            raise ExegeteError("attributive_masking reads words: it does not apply to images")
        same, limit = self._same(model), self.reader.max_length
        if same and batch.length <= limit:
            return RetokenizedBatch(batch)
        if batch.alignments is None:
            reason = (
                f"reads at most {limit} tokens, not {batch.length}"
                if same
                else "tokenizes otherwise than the explained one"
            )
            raise ExegeteError(
                f"the masking model {reason}, and token ids alone do not say what the text was: encode texts instead"
            )
        texts = [each.texts if len(each.texts) > 1 else each.texts[0] for each in batch.alignments]
        own = self.reader.encode(texts)
        assert own.alignments is not None
        maps = [map_tokens(mine, theirs) for mine, theirs in zip(own.alignments, batch.alignments, strict=True)]
        return RetokenizedBatch(own.to(batch.device), _grid(maps, batch).to(batch.device))

    def _same(self, model: ExplainedModel) -> bool:
        """Whether the explained model tokenizes as the masking model does, prompts aside."""
        tokenizer = model.processing_class
        if isinstance(model, PromptedModel) or model.is_decoder or tokenizer is None:
            return False
        if self._compared[0] is not tokenizer:
            self._compared = (
                tokenizer,
                get_tokenizer_definition(tokenizer) == get_tokenizer_definition(self.reader.tokenizer),
            )
        return self._compared[1]


def _grid(maps: list[list[list[int]]], batch: Batch) -> Tensor:
    """[B, L, K] from the map of each example's real tokens; positions that are no content have none."""
    most = max((len(row) for rows in maps for row in rows), default=1) or 1
    grid = torch.full((len(maps), batch.length, most), -1)
    starts = batch.attended.long().argmax(1).tolist()
    for line, rows, start in zip(grid, maps, starts, strict=True):
        for position, row in enumerate(rows, start):
            line[position, : len(row)] = torch.tensor(row, dtype=torch.long)
    return grid.masked_fill(~batch.content.cpu()[..., None], -1)
