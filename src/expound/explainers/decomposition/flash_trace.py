"""FlashTrace: shares of a whole span's residual stream, layer by layer, and through the reasoning before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import OF_DECOMPOSITION, Explainer, TokenScores, select_target
from expound.explainers.decomposition.maps import HeadVectors
from expound.explainers.decomposition.trace import LayerState, Trace, Traces, trace_examples
from expound.models import Batch, ExplainedModel, Outputs

TINY = 1e-12


@dataclass(frozen=True)
class FlashTrace(Explainer):
    """Proximity of each position's part to the summed residual stream of a whole span, summed over layers. Unsigned.

    X = Σ_i ω_i m_i over the span's positions i; the part of position j and head h is (Σ_i ω_i a_ihj) W_O v_hj, and its
    share is max(0, ‖X‖₁ − ‖part − X‖₁) over the sum of all, including the residual's (FlashTrace, 2026). The cost does
    not grow with the span. `TokenScores.layers` contains the layers' shares.

    Args:
        hops: how often relevance of the response before the span (its reasoning) is traced further back; these tokens
            themselves then score 0.
        sinks: the position at which a response token's residual stream is read: the one `predicting` it, or its `own`,
            as the authors do, whose state predicts the next token.
    """

    returns_logits: ClassVar[bool] = True
    hops: int = 0
    sinks: Literal["predicting", "own"] = "predicting"
    assumes: ClassVar = OF_DECOMPOSITION
    card: ClassVar = MethodCard(
        name="flash_trace", label="FlashTrace", family="decomposition", signed=False, differentiable=False,
        cost="≈ 2 F", paper="FlashTrace 2026", unit="share of the contributions",
        equation=r"s_j = \sum_{l, h} \frac{\max(0, \lVert X \rVert_1 - \lVert p_{jh} - X \rVert_1)}{\sum \ldots}, \; "
        r"X = \sum_i \omega_i m_i",
        use="Use it to explain a whole answer of a language model at once: the cost does not grow with the span.",
        avoid="Do not use it for the classes of a classifier: its scores are the same for every class.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hops < 0:
            raise ExpoundError(f"expected hops of at least 0, got {self.hops}")

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute the scores example by example, without padding."""
        traces = trace_examples(model, batch, _find_first_sink(batch))
        resolved = [select_target(model, batch, target, traces.logits) for target in targets]
        return [self._explain_target(model, batch, traces, target) for target in resolved]

    def _explain_target(self, model: ExplainedModel, batch: Batch, traces: Traces, target: Tensor) -> TokenScores:
        readout = model.readout_weights(batch, target)
        reads_own = self.sinks == "own" and batch.response is not None
        sinks = readout.roll(1, 1) if reads_own else readout
        reasoning, outside = _split_response(batch, target)
        results = []
        for row, trace in enumerate(traces):
            positions = trace.positions
            layers = compute_layer_shares(trace, sinks[row, positions])[0]
            if self.hops:
                back = 0 if reads_own else 1
                scores = trace_hops(trace, layers.sum(0), reasoning[row, positions], self.hops, back)
                layers = torch.cat([layers, (scores * outside[row, positions])[None]])
            results.append(trace.spread(layers, batch.length))
        both = torch.stack(results)
        logits = traces.logits.detach()
        if self.hops:
            return TokenScores(both[:, -1], layers=both[:, :-1], logits=logits)
        return TokenScores(both.sum(1), layers=both, logits=logits)


def compute_layer_shares(trace: Trace, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Return each position's relevance for sinks with weights [L] per layer [N, L], and the residual's share [N]."""
    weights = sinks.to(trace.layers[0].x.dtype)
    shares, residuals = zip(*(_compute_shares(state, weights) for state in trace.layers), strict=True)
    return torch.stack(shares), torch.stack(residuals)


def _compute_shares(state: LayerState, weights: Tensor) -> tuple[Tensor, Tensor]:
    whole = weights @ state.middle
    attention = (weights[-state.attention.shape[1] :] @ state.attention)[None]
    near = HeadVectors(state).compute_nearness(attention, whole[None])[0].clamp(min=0)
    residual = (whole.abs().sum() - (weights @ state.x - whole).abs().sum()).clamp(min=0)
    total = near.sum() + residual + TINY
    return near.sum(0) / total, residual / total


def trace_hops(trace: Trace, base: Tensor, reasoning: Tensor, hops: int, back: int) -> Tensor:
    """Return the base scores [L] plus the relevance that reasoning tokens pass on to earlier positions, hop by hop.

    Args:
        trace: the pass.
        base: [L], each position's relevance for the span.
        reasoning: [L] bool, the positions to trace back from.
        hops: number of hops.
        back: 1 to read the residual stream of a position's predecessor, which predicts it, 0 to read its own.
    """
    # Each hop is weighted by the share of relevance that fell on the reasoning in all hops before.
    total = base.clone()
    current, ratio = base, torch.ones_like(base[0])
    for _ in range(hops):
        on = current * reasoning
        ratio = ratio * on.sum() / current.sum().clamp(min=TINY)
        sinks = (on / on.sum().clamp(min=TINY)).roll(-back)
        current = compute_layer_shares(trace, sinks)[0].sum(0)
        total = total + ratio * current
    return total


def _find_first_sink(batch: Batch) -> int:
    """Return the first column whose residual stream may be read: what predicts a response's first token, or any."""
    if batch.response is None:
        return 0
    return max(int(batch.response.any(0).int().argmax()) - 1, 0)


def _split_response(batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks [B, L] of the response before the span, and of positions outside the response."""
    if batch.response is None:
        return torch.zeros_like(batch.attended), batch.attended
    number = batch.response.long().cumsum(1) - 1
    return batch.response & (number < target[:, :1]), batch.attended & ~batch.response
