"""A rationale extractor: gates on the tokens of a text, trained with the model that reads what they let through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.data.registry import check_choices
from expound.errors import ExpoundError
from expound.explainers.learned.base import LearnedExplainer
from expound.explainers.learned.gates import SMALLEST, BernoulliGates, HardKumaGates
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.batch import to_float32

Gate = Literal["bernoulli", "hardkuma"]
LARGEST = 100.0


class RationaleExtractor(LearnedExplainer):
    """The probability that a token is selected, from its state in the model's last layer; the target has no effect.

    A linear layer turns the state into the parameters of a random gate. `expound train extractor` trains it together
    with the model, whose prediction must be right from the selected tokens only (Lei et al. 2016; Bastings et al.
    2019). Unsigned. Untrained, all tokens have equal scores.

    Args:
        width: number of dimensions of the model's hidden states.
        gate: `bernoulli` or `hardkuma`.
    """

    card: ClassVar = MethodCard(
        name="rationale_extractor", family="learned", differentiable=True, cost="F", learned=True,
        paper="Bastings et al. 2019",
        unit="probability to be selected",
        equation=r"s_i = P(z_i \neq 0 \mid h^N_i)",
        use="Use it as a baseline: a rationale that is learned with the prediction, without human rationales.",
        avoid="Do not use it for a model that must not change: the model is trained with it.",
    )  # fmt: skip

    def __init__(self, width: int, gate: Gate = "bernoulli") -> None:
        super().__init__()
        if width < 1:
            raise ExpoundError(f"expected states of at least 1 dimension, got {width}")
        self.width, self.gate = width, gate
        check_choices(self)
        parameters = 2 if gate == "hardkuma" else 1
        # equal scores before training, as in all learned explainers
        self.weight = nn.Parameter(torch.zeros(parameters, width))
        self.bias = nn.Parameter(torch.zeros(parameters))

    @classmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """Return the explainer for a model, untrained."""
        return cls(model.config.hidden_size, **options)

    @property
    def capture(self) -> Capture:
        """The hidden states of every layer; the last is used."""
        return Capture(hidden_states=True)

    def find_gates(self, outputs: Outputs) -> HardKumaGates | BernoulliGates:
        """Return the gates of all positions, with parameters [B, L].

        Raises:
            ExpoundError: the model has hidden states of another width.
        """
        states = outputs.hidden_states[-1]
        if states.shape[-1] != self.width:
            raise ExpoundError(
                f"this {self.name} is for states of {self.width} dimensions, the model has {states.shape[-1]}: use one "
                "made for this model"
            )
        # small probabilities and their logarithms need single precision
        weight, bias = to_float32(self.weight), to_float32(self.bias)
        parameters = nn.functional.linear(to_float32(states).to(weight), weight, bias)
        if self.gate == "bernoulli":
            return BernoulliGates(parameters.squeeze(-1))
        a, b = nn.functional.softplus(parameters).clamp(SMALLEST, LARGEST).unbind(-1)
        return HardKumaGates(a, b)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return the probability that each position is selected [B, L]."""
        with torch.autocast(batch.device.type, enabled=False):
            return self.find_gates(outputs).selected
