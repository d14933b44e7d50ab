"""A bilinear probe of hidden states, fitted to ablations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.attention.weights import select_readout_row
from expound.explainers.learned.base import FittedExplainer
from expound.explainers.units import unit_membership
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.batch import to_float32


class HiddenStateProbe(FittedExplainer):
    """Σ_l Σ_i w_li h^l_q[i] h^l_k[i] over the states of all layers, with q the position of the readout. Signed.

    h^0 are the embeddings; each state is divided by its root mean square over the dimensions, so that layers have equal
    weight. Untrained, the score is the mean cosine of the two states over layers. A unit's score is the sum over its
    positions; for a target of several tokens it is the mean over the positions that predict them. `expound train at2
    --explainer hidden_state_probe` fits w to the effects of ablations, like the coefficients of `attention_to_source`.

    The probe is bilinear because, in a decoder, the states of sources precede the question and cannot depend on it: a
    probe that is linear in h_k could only measure how much a source matters to any question.

    Args:
        n_layers: number of layers of the models to explain.
        width: number of dimensions of their hidden states.
    """

    card: ClassVar = MethodCard(
        name="hidden_state_probe", family="learned", signed=True, differentiable=True, cost="F", learned=True,
        unit="weighted product of states",
        equation=r"s_k = \sum_l \sum_i w_{li} \, \hat{h}^l_q[i] \, \hat{h}^l_k[i], \; w \text{ fitted to ablations}",
        use="A learned baseline for `attention_to_source`, fitted to the same ablations: `expound train at2 "
        "--explainer hidden_state_probe`.",
        avoid="Do not use it for a single prompt or after few ablations: it has a coefficient for every dimension of "
        "every layer.",
    )  # fmt: skip

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        if min(n_layers, width) < 1:
            raise ExpoundError(f"expected at least 1 layer of 1 dimension, got {n_layers} layers of {width}")
        self.n_layers, self.width = n_layers, width
        self.coefficients = nn.Parameter(torch.full((n_layers + 1, width), 1 / ((n_layers + 1) * width)))

    @classmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """Return the explainer for a model, untrained: the mean cosine of the states over layers."""
        return cls(model.config.num_hidden_layers, model.config.hidden_size, **options)

    @property
    def capture(self) -> Capture:
        """The hidden states of every layer."""
        return Capture(hidden_states=True)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return the weighted products of the readout's states with all states: [B, L]."""
        scores = []
        for weights, states in zip(self.coefficients, self._normalize_states(outputs), strict=True):
            # The readout's states are averaged first, so that no L × L matrix is needed.
            readout = select_readout_row(model, batch, states, target)
            scores.append((states * (weights.to(states) * readout)[:, None]).sum(-1))
        return torch.stack(scores).sum(0)

    def features(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, unit: Tensor) -> Tensor:
        """Return h_q[i] Σ_k h_k[i] over the positions k of each unit, for all layers: [B, U, (N + 1) · d]."""
        membership = unit_membership(unit)
        products = []
        for states in self._normalize_states(outputs):
            readout = select_readout_row(model, batch, states, target)
            products.append(readout[:, None] * (membership.to(states).transpose(1, 2) @ states))
        return torch.cat(products, -1)

    def _normalize_states(self, outputs: Outputs) -> list[Tensor]:
        """Return the states h^l [B, L, d] with a mean square of 1.

        Raises:
            ExpoundError: the model has other layers or dimensions than the coefficients.
        """
        found = [states.shape[-1] for states in outputs.hidden_states]
        if found != [self.width] * (self.n_layers + 1):
            widths = "/".join(map(str, sorted(set(found))))
            raise ExpoundError(
                f"this {self.name} is for {self.n_layers} layers of {self.width} dimensions, the model has "
                f"{len(found) - 1} layers of {widths}: use one made for this model"
            )
        # Squares of half-precision states overflow: some dimensions of large models exceed 256.
        states = [to_float32(layer) for layer in outputs.hidden_states]
        return [nn.functional.normalize(layer, dim=-1) * self.width**0.5 for layer in states]
