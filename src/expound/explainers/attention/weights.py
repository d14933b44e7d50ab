"""Attention weights as attributions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.base import OF_ATTENTION, OutputExplainer, TokenScores
from expound.explainers.single_pass import SinglePass
from expound.models import Batch, Capture, ExplainedModel, Outputs

Query = Literal["readout", "mean"]


class LayerwiseAttention(SinglePass):
    """Base of methods that read one row of each layer's attention, and so have scores for every layer."""

    assumes: ClassVar = OF_ATTENTION

    @property
    def capture(self) -> Capture:
        """Attention probabilities of all layers."""
        return Capture(attentions=True)

    @abstractmethod
    def layer_scores(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor) -> Tensor:
        """Compute the scores [B, N, L] of every layer whose attention was captured."""

    def combine_layers(self, rows: Tensor) -> Tensor:
        """Return the scores [B, L] from the layers' scores [B, N, L]: the last layer's."""
        return rows[:, -1]

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> TokenScores:
        """Compute the scores, and each layer's scores if all attentions were captured."""
        rows = self.layer_scores(model, batch, outputs, target)
        # A training step may have captured the last layer's attention only.
        has_all_layers = rows.shape[1] == model.attention_shape[0]
        return TokenScores(self.combine_layers(rows), layers=rows.detach() if has_all_layers else None)


@dataclass(frozen=True)
class AttentionLast(LayerwiseAttention):
    """Last layer's attention, mean over heads: mean_h A^N[q, :]. Unsigned. Encoder-decoders: cross-attention.

    `query`: attention from the position where the prediction is read (`readout`: an encoder's first, a decoder's last
    one), or the `mean` over all positions. `TokenScores.layers` contains every layer's attention.
    """

    query: Query = "readout"
    card: ClassVar = MethodCard(
        name="attention_last", label="Attention of the last layer", family="attention", differentiable=True, cost="F",
        paper="Jain and Wallace 2019", unit="share of attention",
        equation=r"s_i = \frac{1}{H} \sum_h A^N_h[q, i]",
        use="A baseline that costs one forward pass, or the attributions that training pulls towards rationales "
        "(`expound train er_joint --explainer attention_last`).",
        avoid="Do not use it for faithful scores of a model that was not trained for it: attention often rests on "
        "special tokens.",
    )  # fmt: skip

    @property
    def capture(self) -> Capture:
        """Attention probabilities of the last layer."""
        return Capture(attentions=True, last_only=True)

    def layer_scores(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor) -> Tensor:
        """Compute each layer's attention from position q, mean over heads: mean_h A^l[q, :], [B, N, L]."""
        attended = batch.attended.to(model.dtype)
        if self.query == "readout":
            weights = model.readout_weights(batch, target)
        else:
            weights = attended / attended.sum(1, keepdim=True)
        return torch.stack([_average_rows(weights, layer) for layer in outputs.attentions], 1)


@dataclass(frozen=True)
class AttentionAll(AttentionLast):
    """Mean attention over all layers and heads: mean_l mean_h A^l[q, :]. Unsigned; parameters as `attention_last`."""

    card: ClassVar = MethodCard(
        name="attention_all", label="Attention of all layers", family="attention", differentiable=True, cost="F",
        paper="Fernandes et al. 2022", unit="share of attention",
        equation=r"s_i = \frac{1}{N H} \sum_l \sum_h A^l_h[q, i]",
        use="The baseline that learned attention explainers have to beat.",
        avoid="Do not use it when you need a sign, or scores of one class: it reads attention weights alone.",
    )  # fmt: skip
    capture = LayerwiseAttention.capture

    def combine_layers(self, rows: Tensor) -> Tensor:
        """Return the mean over layers: [B, L]."""
        return rows.mean(1)


@dataclass(frozen=True)
class ScaledAttention(OutputExplainer, SinglePass):
    """Last layer's attention times its gradient, each averaged over heads, where the prediction is read. Signed."""

    assumes: ClassVar = OF_ATTENTION
    card: ClassVar = MethodCard(
        name="scaled_attention", family="attention", signed=True, differentiable=True, cost="F + B",
        paper="Serrano and Smith 2019", unit="attention × slope of the {output}",
        equation=r"s_i = \overline{A^N}[q, i] \cdot \overline{\partial f_c / \partial A^N}[q, i]",
        use="Attention weights that depend on the explained class.",
        avoid="Do not use it for models of many layers: the positions of the last layer hold mixtures of words.",
    )  # fmt: skip

    @property
    def capture(self) -> Capture:
        """Attention probabilities of the last layer."""
        return Capture(attentions=True, last_only=True)

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward pass and one backward pass, which goes through the last layer only."""
        return 1.0, 1.0

    def cost(self, length: int) -> float:
        """Return about one forward pass: the last layer alone is small."""
        return 1.0

    def gradient_points(self, outputs: Outputs) -> Sequence[Tensor]:
        """Return the attention of the last layer."""
        # A decoder's last layer has two attentions: its own and the cross-attention. The prediction depends on these
        # blocks, not on the maps among all positions that are made of them, so gradients are taken at the blocks.
        return outputs.blocks[-2:] or outputs.attentions[-1:]

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Compute mean_h A^N[q, :] ⊙ mean_h ∂f_c/∂A^N[q, :], [B, L]."""
        weights = model.scatter_attention(batch, [block.mean(1) for block in self.gradient_points(outputs)])
        mean_slopes = model.scatter_attention(batch, [slope.mean(1) for slope in gradients])
        # The product of means over heads, as in the authors' code, not the mean of products.
        products = []
        for weight, slope in zip(weights, mean_slopes, strict=True):
            row, row_slope = (select_readout_row(model, batch, matrix, target) for matrix in (weight, slope))
            products.append(row * row_slope)
        return torch.stack(products).sum(0)


@dataclass(frozen=True)
class AttentionRollout(LayerwiseAttention):
    """Attention multiplied through the layers, with half of each layer's weight on the residual. Unsigned.

    A' = (mean_h A + I) / 2; the row of A'_N ··· A'_1 where the prediction is read (Abnar and Zuidema 2020).
    `TokenScores.layers` contains that row of A'_l ··· A'_1 for every layer l. In an encoder-decoder, a decoder layer's
    own attention and its cross-attention are two steps, each with half of the weight on the residual.
    """

    card: ClassVar = MethodCard(
        name="attention_rollout", family="attention", differentiable=True, cost="F", paper="Abnar and Zuidema 2020",
        unit="share of attention",
        equation=r"s = \left( \tilde{A}_N \cdots \tilde{A}_1 \right)[q, :], \; \tilde{A}_l = \frac{1}{2} (\bar{A}_l + "
        r"I)",
        use="A cheap map of how positions mix over all layers. It is differentiable, so training can pull it towards "
        "rationales (`--explainer attention_rollout`).",
        avoid="Do not use it to find evidence against the class, or for scores of one class: it reads attention "
        "weights alone.",
    )  # fmt: skip

    def layer_scores(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor) -> Tensor:
        """Compute the readout's row of the product up to each layer: [B, N, L]."""
        maps = model.scatter_attention(batch, [block.mean(1) for block in outputs.blocks or outputs.attentions])
        readout = model.readout_weights(batch, target).to(maps[-1].dtype)[:, None]
        # From the last layer down, every row is multiplied by the layer below, and a row that starts there joins: O(N²
        # · L²) instead of products of matrices.
        rows = readout[:, :0]
        for mixture in reversed(maps):
            rows = torch.cat([readout, rows], 1)
            # Rows of A sum to 1, and to 0 for positions that the attention of one side does not concern: these keep
            # their identity.
            total = mixture.sum(-1)[:, None] + 1
            rows = rows / total @ mixture + rows / total
        return rows


def select_readout_row(model: ExplainedModel, batch: Batch, matrix: Tensor, target: Tensor) -> Tensor:
    """Return the row [B, N] of a matrix [B, L, N] at the position where the prediction is read."""
    weights = model.readout_weights(batch, target).to(matrix.dtype)
    return (weights[:, None] @ matrix)[:, 0]


def _average_rows(weights: Tensor, attention: Tensor) -> Tensor:
    """Return the mean over heads of the weighted mean of rows [B, L], for weights [B, L], attention [B, H, L, L]."""
    return (weights.to(attention.dtype)[:, None] @ attention.mean(1))[:, 0]
