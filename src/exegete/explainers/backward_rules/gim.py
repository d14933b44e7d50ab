"""Gradient interaction modifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers.backward_rules.rules import BackwardRules
from exegete.models import Batch, ExplainedModel
from exegete.models.layers.backward_rules import DerivativeRules


@dataclass(frozen=True)
class Gim(BackwardRules):
    """Distance of the embeddings from a baseline token's, times a gradient that sees interactions. Signed.

    Softmax is differentiated at a higher temperature, so that what one saturated weight hides is seen; norms are held
    at their scales, and products of attention and gates share what comes back evenly (Edin et al. 2025). The baseline
    token itself scores 0 wherever it stands. `Explanation.layers` is measured from zero: inside there is no baseline.

    Args:
        baseline_id: the token measured from, at every position; default: a space where that is one token, else the
            padding token, else the unknown one. Pictures are measured from patches of zero pixels.
        temperature: T of the softmax that is differentiated.
    """

    baseline_id: int | None = None
    temperature: float = 2.0
    card: ClassVar = MethodCard(
        name="gim", label="GIM", family="gradients", signed=True, differentiable=True, cost="F + B",
        paper="Edin et al. 2025", unit="part of the {output}",
        equation=r"s_i = \langle E_i - b, \tilde{\nabla}_{E_i} f_c \rangle, \text{ softmax differentiated at } T = 2",
        use="Use it when several words say the same and plain gradients miss them.",
        avoid="Do not use it when you need scores that sum to the logit.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _ = self.rules

    @property
    def rules(self) -> DerivativeRules:
        """Activations keep their own derivatives."""
        return DerivativeRules(attention="shared", gate="both", activations=False, temperature=self.temperature)

    def origin(self, model: ExplainedModel, batch: Batch) -> Tensor:
        """The baseline's embedding [d] (pictures: [B, L, d])."""
        if model.modality == "image":
            return model.embed_reference(batch)
        token = find_baseline_token(model) if self.baseline_id is None else self.baseline_id
        found: Tensor = model.embedding(torch.tensor(token, device=batch.device))
        return found


def find_baseline_token(model: ExplainedModel) -> int:
    """The id of a space, if that is one known token; else the padding token, else the unknown one, else 0."""
    tokenizer: Any = model.processing_class
    unknown = getattr(tokenizer, "unk_token_id", None)
    if tokenizer is not None:
        space = tokenizer(" ", add_special_tokens=False)["input_ids"]
        if len(space) == 1 and space[0] != unknown:
            return int(space[0])
    padding = (getattr(tokenizer, "pad_token_id", None), model.config.pad_token_id)
    return next((int(value) for value in (*padding, unknown) if value is not None), 0)
