"""Sequential integrated gradients: every position has a path of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import TokenScores
from expound.explainers.gradients.paths import DimensionwiseExplainer, gradients_at, quadrature, scores_at
from expound.models import Batch, ExplainedModel
from expound.models.hugging_face import Baselines


@dataclass(frozen=True)
class SequentialIntegratedGradients(DimensionwiseExplainer):
    """(E_i − b_i) · ∫₀¹ ∂f_c/∂E_i dα, where only E_i moves from b_i, for every position i (Enguehard 2023).

    The class is fixed, and the path is one of word embeddings, to which the model adds positions and norms.
    Completeness holds per position: a score is f_c(E) − f_c(E with b_i for E_i); `convergence_delta` is the largest
    error.

    Examples:
        >>> explain("sequential_integrated_gradients?output=prob&baselines=zero", "good fine film")  # parts
        [0.3, 0.2, 0.0]

    Args:
        n_steps: Gauss-Legendre points per position (the authors take 50), at tokens · n_steps (F + B); `auto`: the
            exact integral from both its ends, by completeness; for sums only.
        aggregate: see `DimensionwiseExplainer`.
        baselines: `mask` (the mask token at content positions), `pad` or `zero`, or the token ids of a reference text
            as long as the example, special tokens included.
    """

    n_steps: int | Literal["auto"] = "auto"
    baselines: Baselines = "mask"
    card: ClassVar = MethodCard(
        name="sequential_integrated_gradients", family="gradients", signed=True, differentiable=True,
        cost="(tokens + 1) F", paper="Enguehard 2023", unit="part of the {output}",
        equation=r"s_i = \langle E_i - b_i, \int_0^1 \partial f_c / \partial E_i \, (E \text{ with } b_i + \alpha "
        r"(E_i - b_i)) \, d\alpha \rangle",
        use="Use it to judge each word in the true context of the others.",
        avoid="Do not use it when several words say the same: replacing one of them alone then changes nothing, as "
        "in occlusion.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_steps == "auto" and self.aggregate != "sum":
            raise ExpoundError(f"aggregate={self.aggregate!r} needs points between the ends: give n_steps, as 20")

    def passes(self, length: int) -> tuple[float, float]:
        """Return a pass per point of each position, and a forward pass per end of each path."""
        steps = 0 if self.n_steps == "auto" else self.n_steps
        return length * (steps + 1) + 1.0, float(length * steps)

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> TokenScores:
        """Return the scores, and per example the largest error of one, relative to its word's drop."""
        keep_graph = torch.is_grad_enabled()
        end = model.embed_with_gradient(batch, keep_graph=True) if keep_graph else model.embed(batch)
        start = model.embed_reference(batch, self.baselines)
        drops = self._drops(model, batch, target, start, end)
        if self.n_steps == "auto":
            return TokenScores(drops, torch.zeros_like(drops[:, 0]).detach())
        shares = self._integrals(model, batch, target, start, end)
        miss = (shares.sum(-1) - drops).detach().masked_fill(~batch.content, 0)
        return TokenScores(self.aggregate_dimensions(shares), miss.gather(1, miss.abs().argmax(1, keepdim=True))[:, 0])

    def _drops(self, model: ExplainedModel, batch: Batch, target: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return the drops f_c(E) − f_c(E with b_i for E_i): [B, L]."""
        rows, positions = batch.content.nonzero(as_tuple=True)
        # The unchanged inputs come first (position -1), then every input with one position at its baseline.
        everyone = torch.arange(len(batch), device=rows.device)
        paths, places = torch.cat([everyone, rows]), torch.cat([everyone.new_full((len(batch),), -1), positions])

        def ends(index: Tensor) -> Tensor:
            return _interpolate_position(start, end, paths[index], places[index], end.new_zeros(len(index)))

        scores = scores_at(model, batch, target, paths, ends)
        drop = scores[: len(batch)][rows] - scores[len(batch) :]
        return torch.zeros_like(end[..., 0]).index_put((rows, positions), drop.to(end.dtype))

    def _integrals(self, model: ExplainedModel, batch: Batch, target: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return Σ_q w_q ∂f_c/∂E_i ⊙ (E_i − b_i): [B, L, d]."""
        # All (position, point) pairs of all examples are packed into the same passes.
        nodes, node_weights = quadrature("gausslegendre", int(self.n_steps))
        alphas, weights = end.new_tensor(nodes), end.new_tensor(node_weights)
        rows, positions = batch.content.nonzero(as_tuple=True)
        rows, positions = rows.repeat_interleave(len(alphas)), positions.repeat_interleave(len(alphas))
        steps = torch.arange(len(rows), device=rows.device) % len(alphas)

        def between(index: Tensor) -> Tensor:
            return _interpolate_position(start, end, rows[index], positions[index], alphas[steps[index]])

        total = torch.zeros_like(end)
        for part in gradients_at(model, batch, target, rows, between):
            row, position = rows[part.points], positions[part.points]
            slope = part.gradient[torch.arange(len(row), device=row.device), position]
            share = slope * (end - start)[row, position] * weights[steps[part.points], None]
            total = total.index_put((row, position), share, accumulate=True)
        return total


def _interpolate_position(start: Tensor, end: Tensor, rows: Tensor, positions: Tensor, alphas: Tensor) -> Tensor:
    """Return E of the rows [m, L, d], with one position of each at b + α(E − b); position -1 changes no position."""
    here = torch.arange(end.shape[1], device=end.device) == positions[:, None]
    away = (here * (1 - alphas[:, None])).to(end.dtype)[..., None]
    return end[rows] - away * (end - start)[rows]
