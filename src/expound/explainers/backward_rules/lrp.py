"""Layer-wise relevance propagation (LRP) through transformers, as gradients with modified rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expound.data.cards import MethodCard
from expound.explainers.backward_rules.rules import BackwardRules
from expound.models.layers.held_factors import DerivativeRules


@dataclass(frozen=True)
class AttnLrp(BackwardRules):
    """Input embedding times its relevance gradient, softmax and attention included (Achtibat et al. 2024). Signed.

    Norms are held at their scales and activations at their slopes; products share the relevance evenly between their
    factors. The softmax loses relevance, so scores do not sum to the logit.
    """

    assumes: ClassVar = ("answers", "shared_rules")
    card: ClassVar = MethodCard(
        name="attn_lrp", label="AttnLRP", family="gradients", signed=True, differentiable=True, cost="F + B",
        paper="Achtibat et al. 2024", unit="part of the {output}",
        equation=r"s_i = \langle E_i, \tilde{\nabla}_{E_i} f_c \rangle, \text{ norms held, products shared evenly}",
        use="Decoders and prompts, for one backward pass.",
        avoid="Do not use it when you rely on scores that sum to the logit: every softmax loses some relevance.",
    )  # fmt: skip

    @property
    def rules(self) -> DerivativeRules:
        """Products share evenly, and the softmax keeps its derivative."""
        return DerivativeRules(attention="shared", gate="both")


@dataclass(frozen=True)
class CpLrp(BackwardRules):
    """Input embedding times its relevance gradient, attention probabilities and gates held (Ali et al. 2022). Signed.

    It equals `decompx_linear` from the embeddings. Scores sum to the logit except for the shares of biases, and of the
    position and token type embeddings.
    """

    card: ClassVar = MethodCard(
        name="cp_lrp", label="CP-LRP", family="gradients", signed=True, differentiable=True, cost="F + B",
        paper="Ali et al. 2022", unit="part of the {output}",
        equation=r"s_i = \langle E_i, \tilde{\nabla}_{E_i} f_c \rangle, \text{ attention and gates held}",
        use="Use it to compare with LRP in the literature; its scores sum to the logit except for biases.",
        avoid="Do not use it to learn what decides where the model attends: attention weights are held constant.",
    )  # fmt: skip
