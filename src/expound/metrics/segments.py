"""Plausibility on one text of a pair: only words of that text are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.metrics.plausibility import RankedUnits, RationaleAuc
from expound.models import Batch


@dataclass(frozen=True, kw_only=True)
class SegmentAuc(RationaleAuc):
    """Area under the ROC curve among the words of one text of a pair (Fernandes et al. 2022, table 6).

    NaN if all or no words of it are marked. `segment`: 1 for the first text, 2 for the second.

    Examples:
        Of the first text, the marked "good" (3) is above "film" (2).

        >>> judge("segment_auc", "good film", [3, 2, 1, 0], text_pair="fine cast", rationale=[[0, 4]])
        1.0
    """

    segment: int = 1
    card: ClassVar = MetricCard(
        name="segment_auc", family="plausibility", higher_is_better=True, paper="Fernandes et al. 2022", bounds=(0, 1),
        needs_rationale=True, label="AUC of a text",
        equation=r"P(s_{\text{marked}} > s_{\text{unmarked}}) \text{ within one text}",
        computed="As `rationale_auc`, among the words of one text of a pair (`segment`: 1 or 2). Scores are compared "
        "by size, without the sign (`absolute`).",
        read="0.5: as by chance; 1: every marked word of that text is ahead of every other. Undefined (NaN) if "
        "nothing, or everything, of that text is marked.",
        use="Pairs, if a method gives all words of one text larger scores than all words of the other.",
        avoid="Do not use it for single texts: it is then the same as `rationale_auc`.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segment not in (1, 2):
            raise ExpoundError(f"expected segment 1 or 2 of a pair, got {self.segment}")
        if self.special_tokens:
            raise ExpoundError("special tokens belong to neither text of a pair: leave special_tokens=False")

    def rank_units(self, batch: Batch, rationale_mask: Tensor, attribution: Tensor) -> RankedUnits:
        """Return the units [B, U] of this text only, sorted by score, see `Plausibility.rank_units`."""
        one_segment = replace(batch, content=batch.content & segment_mask(batch, self.segment - 1))
        return super().rank_units(one_segment, rationale_mask, attribution)


def segment_mask(batch: Batch, segment: int) -> Tensor:
    """Return which positions [B, L] belong to text number `segment` (0 or 1) of each example.

    Raises:
        ExpoundError: a batch made from token ids, which does not know its texts.
    """
    if batch.alignments is None:
        raise ExpoundError("which text a token belongs to is known of texts only: make the batch with model.encode")
    mask = torch.zeros_like(batch.attended)
    for row, alignment in enumerate(batch.alignments):
        is_segment = [span is not None and span[0] == segment for span in alignment.spans]
        # Alignments list the real tokens only, whichever side the batch is padded on.
        mask[row, batch.attended[row]] = torch.tensor(is_segment, device=mask.device)
    return mask
