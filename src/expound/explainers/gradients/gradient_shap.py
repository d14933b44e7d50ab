"""Expected gradients between reference and input, through Captum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from captum.attr import GradientShap as CaptumGradientShap
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.gradients.paths import DimensionwiseExplainer, ScoreOfEmbeddings
from expound.explainers.seeding import example_seeds
from expound.models import Batch, ExplainedModel
from expound.models.hugging_face import Baselines
from expound.models.state import isolate_random_state


@dataclass(frozen=True)
class GradientShap(DimensionwiseExplainer):
    """Captum's GradientSHAP: mean over draws of ∇f_c(b + α(E − b)) · (E − b) (Lundberg and Lee 2017).

    α ~ U(0, 1); b is the reference or, equally often, the input itself (which contributes 0), as in the comparisons of
    AML. Captum draws from the global random state of NumPy and torch, which is seeded per example and then restored.
    Examples are therefore passed to Captum one at a time.

    Examples:
        >>> explain("gradient_shap?output=prob&baselines=zero", "good fine film")  # 4 of 5 draws start at zero
        [0.24, 0.16, 0.0]

    Args:
        n_samples: draws per example.
        stdevs: standard deviation of noise added to the input.
        baselines: `mask` (the mask token at content positions, special tokens unchanged), `pad`, or `zero`
            (everywhere). Or the token ids of a reference text as long as the example, special tokens included.
        seed: random seed; it determines the draws together with the example's content, for any batch and order.
    """

    n_samples: int = 5
    stdevs: float = 0.0
    baselines: Baselines = "mask"
    seed: int = 0
    card: ClassVar = MethodCard(
        name="gradient_shap", label="GradientSHAP", family="gradients", signed=True, cost="n_samples (F + B)",
        paper="Lundberg and Lee 2017", unit="part of the {output}",
        equation=r"s_i = \mathbb{E}_{b, \alpha} \langle \partial f_c / \partial E_i \, (b + \alpha (E - b)), E_i - "
        r"b_i \rangle",
        use="Use it to compare with published figures of the method.",
        avoid="Do not use it when you need stable scores: five draws leave much noise.",
    )  # fmt: skip

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward and one backward pass per draw."""
        return float(self.n_samples), float(self.n_samples)

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return Captum's attributions of each example with its own seed, aggregated over d: [B, L]."""
        scores = model.embed(batch).new_zeros(batch.content.shape)
        for row, seed in enumerate(example_seeds(batch, self.seed)):
            alone, columns = batch.select([row]).trim_padding()
            own_target = model.task.shift(target[row : row + 1], columns.start)
            scores[row, columns] = self._alone(model, alone, own_target, seed)[0]
        return scores

    def _alone(self, model: ExplainedModel, alone: Batch, target: Tensor, seed: int) -> Tensor:
        """Return the scores [1, L] of an example without padding."""
        embeddings = model.embed(alone).detach().requires_grad_()
        baselines = torch.cat([model.embed_reference(alone, self.baselines), embeddings]).detach()
        explainer = CaptumGradientShap(ScoreOfEmbeddings(model, alone, target))
        with isolate_random_state(), torch.enable_grad():
            torch.manual_seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002  (Captum draws from the global generator)
            contributions: Tensor = explainer.attribute(
                embeddings, baselines, n_samples=self.n_samples, stdevs=self.stdevs
            )
        return self.aggregate_dimensions(contributions.detach())
