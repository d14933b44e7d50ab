"""Differences from a reference instead of slopes, through Captum."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from captum.attr import DeepLift as CaptumDeepLift
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers.base import DimensionwiseExplainer
from exegete.explainers.gradients.captum_model import ScoreOfEmbeddings
from exegete.models import Batch, ExplainedModel
from exegete.models.explained import Reference
from exegete.models.state.locks import PROCESS_LOCK


@dataclass(frozen=True)
class DeepLift(DimensionwiseExplainer):
    """Captum's DeepLift with the rescale rule on input embeddings (Shrikumar et al. 2017).

    Limits, which are Captum's: only activations that are modules (nn.Tanh, nn.ReLU, ...) and used once are rescaled; in
    transformers that is often the pooler alone. Softmax, GELU and layer norms keep plain gradients, so the scores lie
    between gradient × (E − b) and DeepLift, and do not add up to f_c(E) − f_c(b).

    `baselines`: `mask` (content positions hold the mask token, special tokens stay), `pad`, or `zero` (everywhere).
    """

    baselines: Reference = "mask"
    card: ClassVar = MethodCard(
        name="deep_lift", label="DeepLIFT", family="gradients", signed=True, cost="2 (F + B)",
        paper="Shrikumar et al. 2017", unit="part of the {output}",
        equation=r"s_i = \langle m_i, E_i - b_i \rangle, \; m_i \text{ by the rescale rule}",
        use="Use it to compare with Captum's DeepLift.",
        avoid="Do not use it when you rely on scores that sum to the change of the output: in transformers, few "
        "activations are rescaled.",
    )  # fmt: skip

    def passes(self, length: int) -> tuple[float, float]:
        """Input and reference, forward and backward."""
        return 2.0, 2.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Captum's contributions, taken together over d."""
        return self.aggregate_dimensions(self._contributions(model, batch, target))

    def _contributions(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """[B, L, d] What Captum says, without a graph; its hooks are gone afterwards, also when it raises."""
        embeddings = model.embed(batch).detach().requires_grad_()
        reference = model.embed_reference(batch, self.baselines).detach()
        with PROCESS_LOCK, warnings.catch_warnings(), torch.enable_grad():
            warnings.filterwarnings("ignore", "Setting forward, backward hooks", UserWarning)
            explainer = CaptumDeepLift(ScoreOfEmbeddings(model, batch, target))
            contributions: Tensor = explainer.attribute(embeddings, reference)
        return contributions.detach()
