"""DeepLift, through Captum."""

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
from exegete.models.hugging_face import Reference
from exegete.models.state import PROCESS_LOCK


@dataclass(frozen=True)
class DeepLift(DimensionwiseExplainer):
    """Captum's DeepLift with the rescale rule on input embeddings (Shrikumar et al. 2017).

    Limits, which are Captum's: it rescales only activations that are modules (nn.Tanh, nn.ReLU, ...) and used once; in
    transformers that is often the pooler alone. Softmax, GELU and layer norms keep plain gradients, so the scores lie
    between gradient × (E − b) and DeepLift, and do not sum to f_c(E) − f_c(b).

    `baselines`: `mask` (the mask token at content positions, special tokens unchanged), `pad`, or `zero` (everywhere).
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
        """Return two forward and two backward passes: input and reference."""
        return 2.0, 2.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return Captum's contributions, aggregated over d: [B, L]."""
        return self.aggregate_dimensions(self._contributions(model, batch, target))

    def _contributions(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return Captum's contributions [B, L, d], without a graph."""
        embeddings = model.embed(batch).detach().requires_grad_()
        reference = model.embed_reference(batch, self.baselines).detach()
        # Captum's hooks and the filter of warnings are global to the process.
        with PROCESS_LOCK, warnings.catch_warnings(), torch.enable_grad():
            warnings.filterwarnings("ignore", "Setting forward, backward hooks", UserWarning)
            explainer = CaptumDeepLift(ScoreOfEmbeddings(model, batch, target))
            contributions: Tensor = explainer.attribute(embeddings, reference)
        return contributions.detach()
