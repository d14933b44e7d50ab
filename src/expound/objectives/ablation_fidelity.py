"""Ablation fidelity: attributions should foretell the prediction when parts of the input are removed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.explainers.gradients.input_x_gradient import InputXGradient
from expound.explainers.perturbation.context_cite import ContextCite, default_unit
from expound.explainers.units import number_units, sum_by_unit
from expound.models import Batch
from expound.models.perturbation.run import RemovalMethod
from expound.models.rank_correlation import compute_pearson
from expound.models.tasks import OutputKind
from expound.objectives.base import AttributionObjective, StepContext, TrainingStep
from expound.objectives.teacher_memory import TeacherMemory, hash_examples

DEFAULT_EXPLAINER = InputXGradient()
MIN_LOG_PROBABILITY = -104.0
"""The logarithm of the smallest positive number in single precision, in place of log 0."""


@dataclass(frozen=True)
class AblationFidelity(AttributionObjective):
    """−Pearson_m(Σ_{u in m} score_u, f_m) over random sets m of units u, mean over examples; from −1 to 1.

    f_m is the log-odds of the prediction (of the whole response for generated text) if only the units of m are kept
    (see `ContextCite`). It is computed without a graph: the explanation is trained to follow it, and through the
    explanation the model. A unit's score is the sum over its positions. The correlation counts as 0 if all predictions
    or all sums are equal.

    Args:
        explainer: any differentiable explainer; its parameters, if it has any, are trained with the model.
        weight: λ, the factor of the term in the total loss.
        n_samples: the number of sets of units drawn for each example and step.
        keep_probability: the probability that a unit is in a set.
        unit: the units; default: sentences of a prompt (or the units of `Batch.unit_of`), words of other texts.
        perturbation: what happens to units outside the set: `remove`, `mask`, `pad`, `zero` or `attend`.
        output: another number of the prediction than its log-odds, `log_prob` or `prob`.
        lifetime: epochs for which an example's sets and predictions are kept; 0: they are new in every step.
        interval: compute the term in every `interval`-th training step, with `interval` times its weight.

    Raises:
        ExpoundError: an explainer that is not differentiable, or a number out of range.
    """

    explainer: Explainer = DEFAULT_EXPLAINER
    weight: float = 1.0
    n_samples: int = 8
    keep_probability: float = 0.5
    unit: UnitName | None = None
    perturbation: RemovalMethod = "remove"
    output: OutputKind | None = None
    lifetime: int = 0
    interval: int = 1
    memory: TeacherMemory = field(default_factory=TeacherMemory, init=False, repr=False, compare=False)
    name: ClassVar[str] = "ablation_fidelity"
    exact_gradient: ClassVar[bool] = False
    equation: ClassVar[str] = r"-\text{Pearson}_m \left( \sum_{u \in m} s_u, \log \frac{p(x_m)}{1 - p(x_m)} \right)"
    use: ClassVar[str] = "Scores should foretell the prediction when units (sources of a prompt, words) are missing."
    avoid: ClassVar[str] = "Alone with a large weight: the predictions change too; hold them by `kl_to_original`."

    def __post_init__(self) -> None:
        super().__post_init__()
        # ContextCite checks n_samples, keep_probability and perturbation
        _ = self._ablation_method
        if self.lifetime < 0 or self.interval < 1:
            raise ExpoundError(f"expected lifetime ≥ 0 and interval ≥ 1, got {self.lifetime} and {self.interval}")

    @property
    def learned(self) -> nn.Module | None:
        """The explainer, if it has parameters, and the memory of predictions, if there is one; None without both."""
        explainer = self.explainer if isinstance(self.explainer, nn.Module) else None
        if not self.lifetime:
            return explainer
        # the memory is a module so that checkpoints contain it
        if explainer is None:
            return self.memory
        return nn.ModuleList([self.memory, explainer])

    @property
    def _ablation_method(self) -> ContextCite:
        return ContextCite(self.n_samples, self.unit, self.perturbation, self.keep_probability, output=self.output)

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean negative correlation over the batch, a scalar."""
        if step.model.modality != "text":
            raise ExpoundError(f"{self.name} takes words away: it does not apply to images")
        model, batch = step.model, step.batch
        interval = self.interval if step.context.training else 1
        if step.context.number % interval:
            # a 0 with a graph: backward() fails on a constant
            return 0.0 * step.task_losses.sum()
        target = model.resolve_target(batch, "predicted", step.outputs.logits)
        unit = self._find_units(batch)
        sets, answers = self._measure_ablations(step, target, unit)
        scores = self.compute_attribution(step, target)
        predicted = torch.einsum("bmu,bu->bm", sets.to(scores), sum_by_unit(scores, unit))
        return -interval * compute_pearson(predicted, answers.to(scores)).mean()

    def _find_units(self, batch: Batch) -> Tensor:
        removable = replace(batch, content=batch.erasable)
        return number_units(removable, self.unit or default_unit(removable))

    def _measure_ablations(self, step: TrainingStep, target: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Return sets [B, M, U] of units [B, L] and the answers [B, M] to them, computed now or kept in memory."""

        def compute(batch: Batch, target: Tensor) -> list[Tensor]:
            unit = self._find_units(batch)
            sets = self._draw_sets(step.context, batch, target, (unit.amax(1) + 1).tolist())
            padded = pad_sequence([example_sets.T for example_sets in sets], batch_first=True)
            masks = padded.permute(2, 0, 1).to(batch.device)
            with torch.no_grad(), step.model.evaluation_mode():
                answers = self._ablation_method.evaluate_masks(step.model, batch, target, masks, unit)
            rows = []
            for example_sets, row in zip(sets, answers.clamp(min=MIN_LOG_PROBABILITY).T.cpu(), strict=True):
                # one flat row per example, as the memory keeps vectors: M sets of U entries, each with its prediction
                rows.append(torch.cat([example_sets.to(row), row[:, None]], 1).flatten())
            return rows

        if self.lifetime and step.context.training:
            rows = self.memory.get_or_compute(step.batch, target, step.context.epoch, self.lifetime, compute)
        else:
            rows = compute(step.batch, target)
        tables = [row.view(self.n_samples, -1).T for row in rows]
        sets = pad_sequence([table[:-1] for table in tables], batch_first=True).transpose(1, 2)
        return sets.to(unit.device), torch.stack([table[-1] for table in tables]).to(unit.device)

    def _draw_sets(self, context: StepContext, batch: Batch, target: Tensor, counts: list[int]) -> list[Tensor]:
        """Return sets [M, U] of each example's units, as booleans."""
        # the same sets in every evaluation, so that epochs can be compared
        context = context if context.training else StepContext(context.seed, training=False)
        sets = []
        for name, count in zip(hash_examples(batch, target), counts, strict=True):
            # the seed belongs to the example, so that neither order nor batch size changes its sets
            generator = context.generator(f"ablations of {name}")
            sets.append(torch.rand(self.n_samples, count, generator=generator) < self.keep_probability)
        return sets
