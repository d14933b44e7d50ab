"""Gradients integrated along the straight path from a reference to the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import TokenScores
from expound.explainers.gradients.adaptive_path import PathValue, integrate
from expound.explainers.gradients.paths import (
    DimensionwiseExplainer,
    Point,
    Rule,
    gradients_at,
    quadrature,
    repeat_rows,
)
from expound.models import Batch, ExplainedModel
from expound.models.hugging_face import Baselines


@dataclass(frozen=True)
class IntegratedGradients(DimensionwiseExplainer):
    """(E − b) ⊙ ∫₀¹ ∇f_c(b + α(E − b)) dα, aggregated over d (Sundararajan et al. 2017).

    Completeness: the scores of all positions sum to f_c(E) − f_c(b), up to the quadrature error `convergence_delta`.

    Examples:
        >>> explain("integrated_gradients?baselines=zero", "good fine film")  # sum: ln .7 − ln .2
        [0.752, 0.501, 0.0]

    Args:
        n_steps: quadrature points; `auto`: each example gets as many as it needs to reach `tolerance`, placed where its
            path bends (Simpson's rule on intervals that are halved where their error is large).
        baselines: `mask` (the mask token at content positions, special tokens unchanged), `pad`, or `zero` (everywhere;
            special tokens then carry a share of the sum, which the scores omit). Or the token ids of a reference text
            as long as the example, special tokens included.
        rule: `gausslegendre`, `riemann_middle` or `riemann_trapezoid`; ignored with `auto`.
        internal_batch_size: interpolated inputs per pass; default: by tokens.
        tolerance: `auto` stops when |delta| is at most this share of |f_c(E) − f_c(b)|.
        max_steps: `auto` stops refining at this number of points.
    """

    n_steps: int | Literal["auto"] = 50
    baselines: Baselines = "mask"
    rule: Rule = "gausslegendre"
    internal_batch_size: int | None = None
    tolerance: float = 0.01
    max_steps: int = 200
    card: ClassVar = MethodCard(
        name="integrated_gradients", family="gradients", signed=True, differentiable=True, cost="n_steps (F + B) + 2 F",
        paper="Sundararajan et al. 2017", unit="part of the {output}",
        equation=r"s_i = \langle E_i - b_i, \int_0^1 \partial f_c / \partial E_i \, (b + \alpha (E - b)) \, d\alpha "
        r"\rangle",
        use="Signed scores whose sum is checked (`convergence_delta`), for any architecture.",
        avoid="Do not use it when tens of passes are too many: `decompx_linear` and `attn_lrp` cost one backward "
        "pass. If `convergence_delta` is large, take more points (`n_steps=auto` places them).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 2 if self.rule == "riemann_trapezoid" else 1
        if self.n_steps != "auto" and self.n_steps < least:
            raise ExpoundError(f"{self.rule} needs n_steps of at least {least}, got {self.n_steps}")
        if self.internal_batch_size is not None and self.internal_batch_size < 1:
            raise ExpoundError(f"internal_batch_size is at least 1, got {self.internal_batch_size}")
        if self.tolerance <= 0:
            raise ExpoundError(f"tolerance is above 0, got {self.tolerance}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return a forward and a backward pass per point (with `auto` at most), and two forward passes for the ends."""
        steps = self.max_steps if self.n_steps == "auto" else self.n_steps
        return steps + 2.0, float(steps)

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> TokenScores:
        """Return the scores, and per example the error of their sum, Σ − (f(E) − f(b))."""
        start, end = self._ends(model, batch)
        if self.n_steps == "auto":
            return self._adaptive(model, batch, target, start, end)
        contributions = self._contributions(model, batch, target, start, end)
        # The two ends are no quadrature points, so the error costs two forward passes.
        with torch.no_grad():
            ends = [model.task.score(model(batch, embeddings=point).logits, target) for point in (end, start)]
            delta = contributions.detach().sum((1, 2)) - (ends[0] - ends[1])
        return TokenScores(self.aggregate_dimensions(contributions), delta)

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point] | None:
        """Return the points of the rule, in the direction of the path; None with `auto`, which chooses per target."""
        if self.n_steps == "auto":
            return None
        start, end = self._ends(model, batch)
        alphas, weights = quadrature(self.rule, self.n_steps)
        steps = zip(alphas.tolist(), weights.tolist(), strict=True)
        # One at a time: each point is as large as the batch's embeddings.
        return (Point(start + alpha * (end - start), weight * (end - start)) for alpha, weight in steps)

    def _ends(self, model: ExplainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the embeddings [B, L, d] of reference and input."""
        keep_graph = torch.is_grad_enabled()
        end = model.embed_with_gradient(batch, keep_graph=True) if keep_graph else model.embed(batch)
        return model.embed_reference(batch, self.baselines), end

    def _contributions(self, model: ExplainedModel, batch: Batch, target: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return every embedding dimension's share [B, L, d] of f(end) − f(start), with a fixed number of points."""
        assert self.n_steps != "auto"
        difference = end - start
        nodes, node_weights = quadrature(self.rule, self.n_steps)
        alphas, weights = end.new_tensor(nodes), end.new_tensor(node_weights)
        rows, points = repeat_rows(batch, len(alphas))

        def between(index: Tensor) -> Tensor:
            return start[rows[index]] + alphas[points[index], None, None] * difference[rows[index]]

        # Σ_q w_q ∇f(b + α_q (E − b)) ⊙ (E − b): examples and points are packed into the same passes.
        total = torch.zeros_like(difference)
        for part in gradients_at(model, batch, target, rows, between, self.internal_batch_size):
            total = total.index_add(0, rows[part.points], part.gradient * weights[points[part.points], None, None])
        return total * difference

    def _adaptive(self, model: ExplainedModel, batch: Batch, target: Tensor, start: Tensor, end: Tensor) -> TokenScores:
        """Return the explanation with points chosen adaptively per example."""
        difference = end - start
        shares: dict[tuple[int, float], Tensor] = {}

        def evaluate(numbers: Sequence[int], points: Sequence[float]) -> list[PathValue]:
            rows = torch.tensor(numbers, device=end.device)
            alphas = torch.tensor(points, dtype=end.dtype, device=end.device)[:, None, None]

            def between(index: Tensor) -> Tensor:
                return start[rows[index]] + alphas[index] * difference[rows[index]]

            scores = torch.zeros(len(numbers), dtype=torch.float64)
            for part in gradients_at(model, batch, target, rows, between, self.internal_batch_size):
                scores[part.points.cpu()] = part.score.detach().double().cpu()
                share = part.gradient * difference[rows[part.points]]
                # Only sums can be reduced before integration: norms need every dimension, at d times the memory.
                if self.aggregate == "sum":
                    share = share.sum(-1, keepdim=True)
                shares.update(zip(((numbers[i], points[i]) for i in part.points.tolist()), share, strict=True))
            sums = (float(shares[key].detach().double().sum()) for key in zip(numbers, points, strict=True))
            return [PathValue(*pair) for pair in zip(scores.tolist(), sums, strict=True)]

        paths = integrate(evaluate, len(batch), self.tolerance, self.max_steps)
        total = []
        for row, path in enumerate(paths):
            weighted = [weight * shares[row, point] for point, weight in path.weights().items()]
            total.append(torch.stack(weighted).sum(0))
        delta = torch.tensor([sum(path.errors()) for path in paths], dtype=end.dtype, device=end.device)
        return TokenScores(self.aggregate_dimensions(torch.stack(total)), delta)
