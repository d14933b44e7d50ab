"""Explainers that use attention weights as attributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.errors import unknown
from exegete.explainers.base import OfOutput, SinglePass, gradient
from exegete.models import Batch, Capture, ExplainedModel, Outputs

Query = Literal["readout", "mean"]


@dataclass(frozen=True)
class AttentionLast(SinglePass):
    """Last layer's attention, mean over heads. Unsigned.

    `query`: attention from where the answer is read (`readout`: the first position of an encoder, the last of a
    decoder), or the `mean` over all positions.
    """

    query: Query = "readout"
    card: ClassVar = MethodCard(
        name="attention_last", family="attention", differentiable=True, cost="F", paper="Jain and Wallace 2019"
    )

    def __post_init__(self) -> None:
        if self.query not in get_args(Query):
            raise unknown("query", self.query, get_args(Query))

    @property
    def capture(self) -> Capture:
        """Attention probabilities of the last layer."""
        return Capture(attentions=True, last_only=True)

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """Attention of the last layer from position q, mean over heads: mean_h A^N[q, :]."""
        return _from_query(model, batch, outputs.attentions[-1].mean(1), target, self.query)


@dataclass(frozen=True)
class AttentionAll(AttentionLast):
    """Attention of all layers and heads, mean. Unsigned; parameters as `attention_last`."""

    card: ClassVar = MethodCard(
        name="attention_all", family="attention", differentiable=True, cost="F", paper="Fernandes et al. 2022"
    )

    @property
    def capture(self) -> Capture:
        """Attention probabilities of all layers."""
        return Capture(attentions=True)

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """Attention from position q, mean over heads and layers: mean_l mean_h A^l[q, :]."""
        mean = torch.stack([layer.mean(1) for layer in outputs.attentions]).mean(0)
        return _from_query(model, batch, mean, target, self.query)


@dataclass(frozen=True)
class ScaledAttention(OfOutput, SinglePass):
    """Last layer's attention times its gradient, each a mean over heads, from where the answer is read. Signed."""

    card: ClassVar = MethodCard(
        name="scaled_attention",
        family="attention",
        signed=True,
        differentiable=True,
        cost="F + B",
        paper="Serrano and Smith 2019",
    )

    @property
    def capture(self) -> Capture:
        """Attention probabilities of the last layer."""
        return Capture(attentions=True, last_only=True)

    def passes(self, length: int) -> tuple[float, float]:
        """One forward; backward through the last layer only."""
        return 1.0, 1.0

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """mean_h A^N[q, :] ⊙ mean_h ∂f_c/∂A^N[q, :]."""
        last = outputs.attentions[-1]
        slope = gradient(self.score(model, outputs, target), last, keep_graph=keep_graph)
        return from_readout(model, batch, last.mean(1), target) * from_readout(model, batch, slope.mean(1), target)


@dataclass(frozen=True)
class AttentionRollout(SinglePass):
    """Attention multiplied through the layers, half of each layer's mixture being the residual. Unsigned.

    A' = (mean_h A + I) / 2; the row of A'_N ··· A'_1 where the answer is read (Abnar and Zuidema 2020).
    """

    card: ClassVar = MethodCard(
        name="attention_rollout", family="attention", differentiable=True, cost="F", paper="Abnar and Zuidema 2020"
    )

    @property
    def capture(self) -> Capture:
        """Attention probabilities of all layers."""
        return Capture(attentions=True)

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The readout's row is multiplied through from the last layer down: O(N·L²), no product of matrices."""
        row = model.readout(batch, target).to(outputs.attentions[-1].dtype)[:, None]
        for layer in reversed(outputs.attentions):
            mixture = layer.mean(1)
            total = mixture.sum(-1)[:, None] + 1
            row = row / total @ mixture + row / total
        return row[:, 0]


def from_readout(model: ExplainedModel, batch: Batch, matrix: Tensor, target: Tensor) -> Tensor:
    """The row [B, L] of a matrix [B, L, L] at the position where the answer is read."""
    weights = model.readout(batch, target).to(matrix.dtype)
    return (weights[:, None] @ matrix)[:, 0]


def _from_query(model: ExplainedModel, batch: Batch, matrix: Tensor, target: Tensor, query: Query) -> Tensor:
    if query == "readout":
        return from_readout(model, batch, matrix, target)
    weights = batch.attended.to(matrix.dtype)
    return (weights[:, None] @ matrix)[:, 0] / weights.sum(1, keepdim=True)
