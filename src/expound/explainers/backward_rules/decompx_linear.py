"""Exact contributions in the network linearized at its own attention, norms and activation slopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from expound.data.cards import MethodCard
from expound.explainers.backward_rules.rules import BackwardRules
from expound.models.layers.held_factors import DerivativeRules


@dataclass(frozen=True)
class DecompXLinear(BackwardRules):
    """Contribution of each position to the target's logit in the network linearized at this input. Signed, exact.

    With attention probabilities, norms' scales and activations' slopes (f(x)/x) held at their true values, the logit is
    affine in the representations x_k that enter the first layer: z = Σ_k ⟨∂z/∂x_k, x_k⟩ + the biases' share. One
    vector-Jacobian product gives every contribution. This is DecompX (Modarressi et al. 2023) with the biases as a
    token of their own, whose contribution is `TokenScores.bias` [B]. From the embeddings it equals `cp_lrp`.

    Args:
        start: `hidden`, the representations that enter the first layer, or `embeddings`, the word (or patch)
            embeddings; positions and token types then count as biases, and the embeddings' norm is held too.
        gate_rule: in gated feed-forwards, hold the gate (`value`), or share the product evenly between gate and value
            (`both`).
    """

    start: Literal["hidden", "embeddings"] = "hidden"
    gate_rule: Literal["value", "both"] = "value"
    card: ClassVar = MethodCard(
        name="decompx_linear", label="Linear DecompX", family="decomposition", signed=True, differentiable=True,
        cost="F + B", paper="Modarressi et al. 2023", unit="part of the {output}",
        equation=r"s_k = \langle \partial z_c / \partial x_k, x_k \rangle, \; \text{attention, norms and slopes held}",
        use="The first method to try for a supported architecture: one backward pass, signed, differentiable.",
        avoid="Do not expect it to be the best everywhere: in our results it is among the best by comprehensiveness "
        "and sufficiency, but not by every metric, model and kind of text. For an architecture that is not "
        "supported, use `integrated_gradients`.",
    )  # fmt: skip

    @property
    def rules(self) -> DerivativeRules:
        """Everything is held, except for gates as `gate` says."""
        return DerivativeRules(gate=self.gate_rule)
