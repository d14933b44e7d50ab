"""Value zeroing: how much each token's representation changes if another token's value is zeroed in a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.attention.weights import select_readout_row
from expound.explainers.base import OF_ATTENTION, Explainer, TokenScores
from expound.models import Batch, ExplainedModel
from expound.models.batch import get_token_budget, pack
from expound.models.passes.layer_calls import LayerCall, record_layer_calls
from expound.models.state import choose_attention_type


@dataclass(frozen=True)
class ValueZeroing(Explainer):
    """Rollout of C_ij ∝ 1 − cos(y_i, y_i with the value of j zeroed) over the layers (Mohebbi et al. 2023). Unsigned.

    y is a layer's output on its true input; rows of C sum to 1. A layer's output contains its residual branches, so no
    identity is added. The score is the row of C^N ··· C^1 where the prediction is read; `layers` are the rows of the
    products up to each layer. Scores do not depend on the explained class.
    """

    assumes: ClassVar = OF_ATTENTION
    card: ClassVar = MethodCard(
        name="value_zeroing", family="attention", cost="(tokens + 1) F", paper="Mohebbi et al. 2023",
        unit="share of the contributions",
        equation=r"C_{ij} \propto 1 - \cos(y_i, y_i^{\setminus v_j}), \; s = (C^N \cdots C^1)[q, :]",
        use="Use it to study how an encoder mixes context.",
        avoid="Do not use it for the evidence of one class, or for long texts: it takes one pass per token.",
    )  # fmt: skip

    def passes(self, length: int) -> tuple[float, float]:
        """Return a forward pass, and one per position, in which every layer runs with that value zeroed."""
        return length + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> TokenScores:
        """Compute the scores, and each layer's scores."""
        # One example at a time: the copies with one value zeroed each fill a pass.
        layers: list[Tensor] = []
        for row in range(len(batch)):
            alone, columns = batch.select([row]).trim_padding()
            with choose_attention_type(model.model, alone.length):
                rows = _compute_layer_rows(model, alone, model.task.shift(target[row : row + 1], columns.start))
            layers.append(torch.nn.functional.pad(rows, (columns.start, batch.length - columns.stop)))
        stacked = torch.stack(layers)
        return TokenScores(stacked[:, -1], layers=stacked)


def _compute_layer_rows(model: ExplainedModel, alone: Batch, target: Tensor) -> Tensor:
    """Return the readout's row of the product of C up to each layer: [N, L]."""
    rolled = torch.eye(alone.length, device=alone.device, dtype=torch.float64)
    rows = []
    for call in record_layer_calls(model, alone):
        rolled = compute_contributions(call) @ rolled
        rows.append(select_readout_row(model, alone, rolled[None], target)[0])
    if not rows:
        raise ExpoundError(f"value_zeroing finds no layers that {type(model.model).__name__} runs")
    return torch.stack(rows).to(model.dtype)


def compute_contributions(call: LayerCall) -> Tensor:
    """Return C [L, L] of one layer, in float64; the row of a position that never changes is zero."""
    if call.output.ndim != 3:
        shape = list(call.output.shape)
        raise ExpoundError(f"value_zeroing needs one hidden state per position, not states of shape {shape}")
    length = call.output.shape[1]
    masks = torch.eye(length, dtype=torch.bool, device=call.output.device)
    similar = []
    for part in pack([length] * length, get_token_budget(masks.device)):
        # 1 − cos of nearly equal vectors cancels: float32 would leave only noise of it.
        similar.append(
            torch.cosine_similarity(call.run_without_values(masks[part]).double(), call.output.double(), dim=-1)
        )
    change = (1 - torch.cat(similar).T).clamp(min=0)
    total = change.sum(1, keepdim=True)
    return torch.where(total > 0, change / total, 0.0)
