"""A bilinear probe of hidden states that learns from ablations what an answer comes from."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers.attention.weights import select_readout_row
from exegete.explainers.learned.base import FittedExplainer
from exegete.explainers.learned.learned_attention import promote_to_float32
from exegete.explainers.units import unit_membership
from exegete.models import Batch, Capture, ExplainedModel, Outputs


class HiddenStateProbe(FittedExplainer):
    """Σ_l Σ_i w_li h^l_q[i] h^l_k[i], over the states of all layers, q where the answer is read. Signed.

    h^0 are the embeddings; each state is divided by its root mean square over the dimensions, so that layers weigh
    alike. Untrained it is the mean over h^l of the cosine of the two states. A unit's score is the sum of its
    positions'; that of several tokens the mean over where each is predicted. `exegete train at2 --learner
    hidden_state_probe` fits w to the effects of ablations, as that of `attention_to_source`.
    It is bilinear because in a decoder the states of sources stand before the question and cannot know it: a linear
    probe of h_k alone could only say how much a source matters to any question.

    Args:
        n_layers: the layers of the models that it shall explain.
        width: the dimensions of their hidden states.
    """

    card: ClassVar = MethodCard(
        name="hidden_state_probe", family="learned", signed=True, differentiable=True, cost="F", learned=True,
        unit="weighted product of states",
        equation=r"s_k = \sum_l \sum_i w_{li} \, \hat{h}^l_q[i] \, \hat{h}^l_k[i], \; w \text{ fitted to ablations}",
        use="A learned baseline for `attention_to_source`, fitted to the same ablations: `exegete train at2 "
        "--learner hidden_state_probe`.",
        avoid="Do not use it for a single prompt or after few ablations: it has a coefficient for every dimension of "
        "every layer.",
    )  # fmt: skip

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        if min(n_layers, width) < 1:
            raise ExegeteError(f"expected at least 1 layer of 1 dimension, got {n_layers} layers of {width}")
        self.n_layers, self.width = n_layers, width
        self.coefficients = nn.Parameter(torch.full((n_layers + 1, width), 1 / ((n_layers + 1) * width)))

    @classmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """The mean over layers of how alike the states are."""
        return cls(model.config.num_hidden_layers, model.config.hidden_size, **options)

    @property
    def capture(self) -> Capture:
        """Hidden states of every layer."""
        return Capture(hidden_states=True)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The states at q are averaged before they meet the others: no L×L matrix is made."""
        weighted = [
            (states * (weights.to(states) * select_readout_row(model, batch, states, target))[:, None]).sum(-1)
            for weights, states in zip(self.coefficients, self._normalise_states(outputs), strict=True)
        ]
        return torch.stack(weighted).sum(0)

    def features(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, unit: Tensor) -> Tensor:
        """h_q[i] Σ_k h_k[i] over the positions k of each unit, layer by layer."""
        inside = unit_membership(unit)
        products = [
            select_readout_row(model, batch, states, target)[:, None] * (inside.to(states).transpose(1, 2) @ states)
            for states in self._normalise_states(outputs)
        ]
        return torch.cat(products, -1)

    def _normalise_states(self, outputs: Outputs) -> list[Tensor]:
        """h^l [B, L, d] with a mean square of 1. Raises ExegeteError unless the coefficients are for such states."""
        found = [states.shape[-1] for states in outputs.hidden_states]
        if found != [self.width] * (self.n_layers + 1):
            widths = "/".join(str(width) for width in sorted(set(found)))
            raise ExegeteError(
                f"this {self.name} is for {self.n_layers} layers of {self.width} dimensions, the model has "
                f"{len(found) - 1} layers of {widths}: use one made for this model"
            )
        return [nn.functional.normalize(promote_to_float32(x), dim=-1) * self.width**0.5 for x in outputs.hidden_states]
