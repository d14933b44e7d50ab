"""Exact contributions to the answer of the network held at its own attention, norms and activation slopes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.errors import unknown
from exegete.explainers.base import Explanation, OfOutput
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.architecture import layers
from exegete.models.frozen import Factors, Gate, frozen
from exegete.models.inputs import inputs_of

CAPTURE = Capture(differentiable_twice=True)


@dataclass(frozen=True)
class DecompXLinear(OfOutput):
    """Contribution of each position to the target's logit in the network made linear at this input. Signed, exact.

    With attention probabilities, norms' scales and activations' slopes (f(x)/x) held at their true values, the logit is
    affine in the representations x_k that enter the first layer: z = Σ_k ⟨∂z/∂x_k, x_k⟩ + what the biases add, so one
    vector-Jacobian product gives every contribution: DecompX (Modarressi et al. 2023) with the biases as a token of
    their own. Any family with an `Architecture`. `Explanation.bias` [B] is z − Σ_k over all positions;
    `Explanation.layers` [B, N, L] holds ⟨∂z/∂x_k, x_k⟩ at the inputs of every layer.

    When attributions keep a graph, their derivatives with respect to the weights are the true ones: what is held still
    for the contributions is not held still for them. That takes a second forward pass.
    With `gate="both"` they keep none.

    Args:
        start: `hidden`, the representations that enter the first layer, or `embeddings`, the word (or patch)
            embeddings; positions and token types then belong to the biases, and the embeddings' norm is held too.
        gate: in gated feed-forwards, hold the gate (`value`), or give gate and value half of the product each (`both`).
    """

    start: Literal["hidden", "embeddings"] = "hidden"
    gate: Gate = "value"
    card: ClassVar = MethodCard(
        name="decompx_linear",
        family="decomposition",
        signed=True,
        differentiable=True,
        cost="F + B",
        paper="Modarressi et al. 2023",
    )

    @property
    def differentiable(self) -> bool:
        """Unless the product of gate and value is shared between both."""
        return self.gate == "value"

    def passes(self, length: int) -> tuple[float, float]:
        """One forward and one backward pass."""
        return 1.0, 1.0

    def explanation(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Explanation:
        """⟨∂z/∂x_k, x_k⟩, at the start and at every layer."""
        if self.start not in ("hidden", "embeddings"):
            raise unknown("start", self.start, ("hidden", "embeddings"))
        keep_graph = torch.is_grad_enabled()
        factors, true = self._ordinary_pass(model, batch) if keep_graph else (Factors(), None)
        with torch.enable_grad(), frozen(model.model, factors, self.gate), self._started(model, batch) as inputs:
            embeddings = self._leaf(model, batch)
            logits = model(batch, embeddings, CAPTURE).logits
            points = inputs if embeddings is None else [embeddings, *inputs]
            score = model.task.score(logits, target)
            slopes = torch.autograd.grad(score.sum(), points, create_graph=keep_graph)
        real = slice(batch.length)  # BigBird pads to full blocks, and nothing comes from there
        contributions = [(slope * point).sum(-1).detach()[:, real] for slope, point in zip(slopes, points, strict=True)]
        scores = contributions[0] if true is None else (slopes[0] * true).sum(-1)[:, real]
        bias = score.detach() - contributions[0].sum(1)
        return Explanation(scores, layers=torch.stack(contributions[-len(inputs) :], 1), bias=bias)

    def _leaf(self, model: ExplainedModel, batch: Batch) -> Tensor | None:
        return model.embed(batch).detach().requires_grad_() if self.start == "embeddings" else None

    @contextmanager
    def _started(self, model: ExplainedModel, batch: Batch) -> Iterator[list[Tensor]]:
        """The inputs of the layers; the first one is cut off from what came before it, if the start is there."""

        def change(call: int, value: Tensor) -> Tensor:
            return value.detach().requires_grad_() if call == 0 and self.start == "hidden" else value

        with inputs_of(layers(model.model), change) as inputs:
            yield inputs

    def _ordinary_pass(self, model: ExplainedModel, batch: Batch) -> tuple[Factors, Tensor]:
        """The factors to hold the network at, and the representations at the start, with their graphs."""
        factors = Factors(record=True)
        with ExitStack() as scope:
            scope.enter_context(frozen(model.model, factors, self.gate))
            inputs = scope.enter_context(inputs_of(layers(model.model)))
            embeddings = model.embed(batch) if self.start == "embeddings" else None
            model(batch, embeddings, CAPTURE)
        return factors.replayed(), inputs[0] if embeddings is None else embeddings
