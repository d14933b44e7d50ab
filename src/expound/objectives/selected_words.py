"""Rationale extraction end to end: the prediction must follow from the tokens that gates select."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.base import describe_explainer
from expound.explainers.learned.gates import BernoulliGates, HardKumaGates, expect_changes
from expound.explainers.learned.rationale_extractor import Gate, RationaleExtractor
from expound.models import Capture, ExplainedModel
from expound.objectives.base import Objective, TrainingStep, task_losses


@dataclass(frozen=True)
class SelectedWordsLoss(Objective):
    """The task's loss on the selected tokens, and the distance of their expected share from a fraction.

    A second pass reads the input embeddings multiplied by the gates z; special tokens are always kept. HardKuma gates
    are differentiated through their samples (Bastings et al. 2019). For Bernoulli gates the gradient of the expected
    loss is estimated by REINFORCE (Lei et al. 2016) from two samples, each of which is the other one's baseline. In
    evaluation gates have their most likely values. The expected share of selected tokens, and the expected number of
    changes between neighbors, are computed from the gates' probabilities.

    Args:
        explainer: the extractor, trained with the model; default: a new `rationale_extractor` with gates of this kind.
        weight: λ, the factor of the term in the total loss.
        fraction: the share of a text's tokens that should be selected.
        sparsity_weight: the weight of |expected share − fraction| within the term.
        sparsity_warmup: the steps over which this weight grows from 0. If gates close at once, they close alike.
        continuity_weight: the weight of the expected changes between neighbors, per token.
        gate: `bernoulli` or `hardkuma`, the gates of a new extractor.

    Raises:
        ExpoundError: another explainer, a number out of range, or a task that predicts neither classes nor a value.
    """

    explainer: RationaleExtractor | None = None
    weight: float = 1.0
    fraction: float = 0.2
    sparsity_weight: float = 1.0
    sparsity_warmup: int = 0
    continuity_weight: float = 0.0
    gate: Gate = "bernoulli"
    name: ClassVar[str] = "selected_words"
    exact_gradient: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    equation: ClassVar[str] = (
        r"\mathbb{E}_z \, \text{CE}(y \mid z \odot x) + \lambda_s \left| \frac{1}{L} \sum_i P(z_i \neq 0) - r \right|"
        r" + \lambda_c \frac{1}{L} \sum_i P([z_i \neq 0] \neq [z_{i+1} \neq 0])"
    )
    use: ClassVar[str] = "A short rationale should be enough for the prediction, and no human rationales are there."
    avoid: ClassVar[str] = "The prediction must stay the whole text's: explain the model as it is."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.explainer is not None and not isinstance(self.explainer, RationaleExtractor):
            raise ExpoundError(f"{self.name} trains a rationale_extractor, not {self.explainer.name}")
        if not 0 < self.fraction <= 1:
            raise ExpoundError(f"expected a fraction above 0 and up to 1, as 0.2 for 20 %, got {self.fraction}")
        if min(self.sparsity_weight, self.sparsity_warmup, self.continuity_weight) < 0:
            raise ExpoundError("expected sparsity_weight, sparsity_warmup and continuity_weight of at least 0")

    @property
    def capture(self) -> Capture:
        """The hidden states, which the extractor reads."""
        return Capture(hidden_states=True)

    @property
    def learned(self) -> RationaleExtractor | None:
        """The extractor."""
        return self.explainer

    @property
    def params(self) -> dict[str, Any]:
        """The objective's parameters, with the extractor's id and parameters."""
        return super().params | {"explainer": self.explainer and describe_explainer(self.explainer)}

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the objective with an extractor, a new one for this model if it has none."""
        if self.explainer is not None:
            return self
        return replace(self, explainer=RationaleExtractor.for_model(model, gate=self.gate).to(model.device))

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the batch, a scalar."""
        if step.model.modality != "text" or step.model.task.is_read_at_positions:
            raise ExpoundError(f"{self.name} selects words of a text for which a class or a number is predicted")
        extractor, content = self.prepare(step.model).learned, step.batch.content
        assert extractor is not None
        with torch.autocast(content.device.type, enabled=False):
            gates = extractor.find_gates(step.outputs)
            length = content.sum(1).clamp(min=1)
            share = (gates.selected * content).sum(1) / length
            penalty = self.sparsity_weight * self._find_progress(step) * (share - self.fraction).abs()
            penalty = penalty + self.continuity_weight * expect_changes(gates.selected, content) / length
        if not step.context.training:
            losses = self._compute_losses(step, gates.most_likely())
        elif isinstance(gates, HardKumaGates):
            losses = self._compute_losses(step, gates.sample(self._draw(step, 1)[0]))
        else:
            losses = self._estimate_losses(step, gates)
        return (losses + penalty).mean()

    def _find_progress(self, step: TrainingStep) -> float:
        """Return the share of the sparsity's weight that counts in this step; in evaluation 1."""
        if not step.context.training or not self.sparsity_warmup:
            return 1.0
        return min(1.0, step.context.number / self.sparsity_warmup)

    def _draw(self, step: TrainingStep, samples: int) -> Tensor:
        """Return uniform numbers [samples, B, L] that depend on the step alone."""
        generator = step.generator(self.name)
        return torch.rand(samples, *step.batch.content.shape, generator=generator, device=step.batch.device)

    def _compute_losses(self, step: TrainingStep, gates: Tensor) -> Tensor:
        """Return the task's loss of each example [B] if the model sees its embeddings times the gates [B, L]."""
        kept = torch.where(step.batch.content, gates, 1.0)
        embeddings = step.model.embed(step.batch)
        outputs = step.model(step.batch, embeddings * kept[..., None].to(embeddings))
        return task_losses(step.model, step.batch, outputs.logits)[0]

    def _estimate_losses(self, step: TrainingStep, gates: BernoulliGates) -> Tensor:
        """Return the mean loss of two samples [B], with the REINFORCE estimate as the gates' gradient."""
        samples = [gates.sample(uniform) for uniform in self._draw(step, 2)]
        losses = torch.stack([self._compute_losses(step, sample) for sample in samples])
        scores = []
        for sample in samples:
            scores.append((gates.log_probability(sample) * step.batch.content).sum(1))
        log_probabilities = torch.stack(scores)
        advantages = (losses - losses.flip(0)).detach()
        # the value of the second term is 0: it is there for its gradient
        estimate = advantages * (log_probabilities - log_probabilities.detach())
        return (losses + estimate).mean(0)
