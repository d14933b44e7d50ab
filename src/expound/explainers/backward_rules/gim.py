"""Gradient interaction modifications (GIM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.backward_rules.rules import BackwardRules
from expound.models import Batch, ExplainedModel
from expound.models.layers.held_factors import AttentionRule, DerivativeRules, Gate


@dataclass(frozen=True)
class Gim(BackwardRules):
    """Difference of the embeddings from a baseline token's, times a gradient that sees interactions. Signed.

    The softmax is differentiated at a higher temperature, which reveals what a saturated weight hides; norms are held
    at their scales, and products of attention and gates share the gradient evenly (Edin et al. 2025). The baseline
    token itself always scores 0. `TokenScores.layers` is measured from zero, since inner layers have no baseline.

    Args:
        baseline_id: the baseline token, at every position; default: a space if that is one token, else the padding
            token, else the unknown token. The baseline of images is patches of zero pixels.
        temperature: temperature of the differentiated softmax; 1 is its own derivative.
        hold_norms: hold norms at their scales.
        share_products: share the gradient of attention's and gates' products evenly. The paper takes each of these
            three modifications away.
    """

    assumes: ClassVar = ("answers", "shared_rules")
    baseline_id: int | None = None
    temperature: float = 2.0
    hold_norms: bool = True
    share_products: bool = True
    card: ClassVar = MethodCard(
        name="gim", label="GIM", family="gradients", signed=True, differentiable=True, cost="F + B",
        paper="Edin et al. 2025", unit="part of the {output}",
        equation=r"s_i = \langle E_i - b, \tilde{\nabla}_{E_i} f_c \rangle, \text{ softmax differentiated at } T = 2",
        use="Use it when several words say the same and plain gradients miss them.",
        avoid="Do not use it when you need scores that sum to the logit.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        # Validates the temperature.
        _ = self.rules

    @property
    def rules(self) -> DerivativeRules:
        """Shared products and a softmax at `temperature`; activations keep their own derivatives."""
        attention: AttentionRule = "shared" if self.share_products else "free"
        gate: Gate = "both" if self.share_products else "free"
        return DerivativeRules(attention, gate, self.hold_norms, activations=False, temperature=self.temperature)

    def origin(self, model: ExplainedModel, batch: Batch) -> Tensor:
        """Return the baseline's embedding [d] (images: [B, L, d])."""
        if model.modality == "image":
            return model.embed_reference(batch)
        token = find_baseline_token(model) if self.baseline_id is None else self.baseline_id
        embedding: Tensor = model.embedding(torch.tensor(token, device=batch.device))
        return embedding


def find_baseline_token(model: ExplainedModel) -> int:
    """Return the id of a space if that is one known token, else the padding token's, else the unknown one's, else 0."""
    tokenizer: Any = model.processing_class
    unknown = getattr(tokenizer, "unk_token_id", None)
    if tokenizer is not None:
        space = tokenizer(" ", add_special_tokens=False)["input_ids"]
        if len(space) == 1 and space[0] != unknown:
            return int(space[0])
    config = model.config.get_text_config()
    padding = (getattr(tokenizer, "pad_token_id", None), getattr(config, "pad_token_id", None))
    return next((int(value) for value in (*padding, unknown) if value is not None), 0)
