"""Controls: scores without information, which a method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import Explainer
from expound.explainers.seeding import example_generators
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True)
class Random(Explainer):
    """Independent N(0, 1) scores, a control without any information about the model.

    `seed`: random seed; it determines the scores together with the example's content, for any batch and order.
    """

    seed: int = 0
    card: ClassVar = MethodCard(
        name="random", family="control", cost="0", unit="drawn by chance",
        equation=r"s_i \sim \mathcal{N}(0, 1)",
        use="Include it in every comparison: a method that is not better than random scores tells nothing about the "
        "model.",
        avoid="Do not use it as an explanation.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise ExpoundError(f"expected a seed from 0 to 2⁶⁴ − 1, got {self.seed}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return no passes: the model is not run."""
        return 0.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Draw a score [B, L] for each content position."""
        # Drawn in the order of content positions, so that padding changes nothing.
        scores = np.zeros(tuple(batch.content.shape), np.float32)
        for row, content, random in zip(
            scores, batch.content.cpu().numpy(), example_generators(batch, self.seed), strict=True
        ):
            row[content] = random.standard_normal(int(content.sum()))
        return torch.from_numpy(scores).to(batch.device)
