"""Plausibility on one text of a pair: words of the other are neither right nor wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.metrics.plausibility import Auc, RankedUnits
from exegete.models import Batch


@dataclass(frozen=True, kw_only=True)
class SideAuc(Auc):
    """Area under the ROC curve among the words of one text of a pair (Fernandes et al. 2022, table 6).

    NaN where all or none of its words are marked. `side`: 1, the first text, or 2, the second.
    """

    side: int = 1
    card: ClassVar = MetricCard(
        name="side_auc", family="plausibility", higher_is_better=True, paper="Fernandes et al. 2022", bounds=(0, 1),
        needs_rationale=True, label="AUC of a text",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in (1, 2):
            raise ExegeteError(f"a pair has side 1 and side 2, not {self.side}")
        if self.specials:
            raise ExegeteError("special tokens belong to neither text of a pair: leave specials=False")

    def rank_units(self, batch: Batch, rationale: Tensor, attribution: Tensor) -> RankedUnits:
        """See `Plausibility`; only this text's units are candidates."""
        own = replace(batch, content=batch.content & side_mask(batch, self.side - 1))
        return super().rank_units(own, rationale, attribution)


def side_mask(batch: Batch, side: int) -> Tensor:
    """[B, L] Which positions belong to the text number `side`.

    Raises:
        ExegeteError: a batch made of ids, which do not say.
    """
    if batch.alignments is None:
        raise ExegeteError("which text a token belongs to is known of texts only: make the batch with model.encode")
    found = torch.zeros_like(batch.attended)
    for row, alignment in enumerate(batch.alignments):
        where = [span is not None and span[0] == side for span in alignment.spans]
        found[row, batch.attended[row]] = torch.tensor(where, device=found.device)
    return found
