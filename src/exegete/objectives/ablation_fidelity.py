"""Scores shall foretell the answer when parts of the input are missing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers import Explainer
from exegete.explainers.gradients.input_x_gradient import InputXGradient
from exegete.explainers.perturbation.context_cite import ContextCite, default_granularity
from exegete.explainers.units import number_units, sum_by_unit
from exegete.models import Batch
from exegete.models.perturbation.run import RemovalMethod
from exegete.models.rank_correlation import compute_pearson
from exegete.models.tasks import OutputKind
from exegete.objectives.attribution_objective import AttributionObjective
from exegete.objectives.base import StepContext, TrainingStep
from exegete.objectives.teacher_memory import TeacherMemory, hash_examples

DEFAULT_EXPLAINER = InputXGradient()
MIN_LOG_PROBABILITY = -104.0
"""The logarithm of the smallest number in single precision: an answer cannot become less likely than that."""


@dataclass(frozen=True)
class AblationFidelity(AttributionObjective):
    """−Pearson_m(Σ_{u in m} score_u, f_m) over random sets m of units u, mean over examples; from −1 to 1.

    f_m is the log-odds of the prediction (a generated response: of the whole of it) where only the units of m are there
    (see `ContextCite`), measured without a graph: what is trained is the explanation, and through it the model. A
    unit's score is the sum of its positions'. Where all answers or all sums are equal the correlation counts as 0.

    Args:
        explainer: any differentiable method; if it has parameters they are trained with the model.
        weight: λ.
        masks: sets of units, drawn for each example and step.
        keep: the probability that a unit is in a set.
        granularity: the units; default: sentences (or what `Batch.unit_of` says) of a prompt, words elsewhere.
        perturbation: what happens to the others: `remove`, `mask`, `pad` or `zero`.
        output: another number of the prediction than its log-odds, `log_prob` or `prob`.
        lifetime: epochs for which an example's sets and answers are kept; 0: they are new in every step.
        interval: in training the term is there in every so-manieth step, so many times as heavy.

    Raises:
        ExegeteError: a method that is not differentiable, a number out of its range.
    """

    explainer: Explainer = DEFAULT_EXPLAINER
    weight: float = 1.0
    masks: int = 8
    keep: float = 0.5
    granularity: Granularity | None = None
    perturbation: RemovalMethod = "remove"
    output: OutputKind | None = None
    lifetime: int = 0
    interval: int = 1
    memory: TeacherMemory = field(default_factory=TeacherMemory, init=False, repr=False, compare=False)
    name: ClassVar[str] = "ablation_fidelity"
    exact_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._ablation_method
        if self.lifetime < 0 or self.interval < 1:
            raise ExegeteError(f"expected lifetime ≥ 0 and interval ≥ 1, got {self.lifetime} and {self.interval}")

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters and the explainer's."""
        return {name: value for name, value in super().params.items() if name != "memory"}

    @property
    def learned(self) -> nn.Module | None:
        """The memory where answers are kept, the explainer where it has parameters; else None."""
        own: list[nn.Module] = [self.memory] if self.lifetime else []
        own += [self.explainer] if isinstance(self.explainer, nn.Module) else []
        return nn.ModuleList(own) if len(own) > 1 else next(iter(own), None)

    @property
    def _ablation_method(self) -> ContextCite:
        return ContextCite(self.masks, self.granularity, self.perturbation, self.keep, output=self.output)

    def __call__(self, step: TrainingStep) -> Tensor:
        """The negative correlation, a scalar: a mean over the batch."""
        if step.model.modality != "text":
            raise ExegeteError(f"{self.name} takes words away: it does not apply to images")
        model, batch, often = step.model, step.batch, self.interval if step.context.training else 1
        if step.context.number % often:
            return 0.0 * step.task_losses.sum()
        target = model.resolve_target(batch, "predicted", step.outputs.logits)
        unit = self._find_units(batch)
        present, answers = self._measure_ablations(step, target, unit)
        scores = self.compute_attribution(step, target)
        foretold = torch.einsum("bmu,bu->bm", present.to(scores), sum_by_unit(scores, unit))
        return -often * compute_pearson(foretold, answers.to(scores)).mean()

    def _find_units(self, batch: Batch) -> Tensor:
        removable = replace(batch, content=batch.erasable)
        return number_units(removable, self.granularity or default_granularity(removable))

    def _measure_ablations(self, step: TrainingStep, target: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Sets [B, M, U] of units [B, L] and the answers [B, M] to them, new or some epochs old."""

        def ask(batch: Batch, target: Tensor) -> list[Tensor]:
            asked = self._find_units(batch)
            sets = self._draw_sets(step.context, batch, target, (asked.amax(1) + 1).tolist())
            there = pad_sequence([own.T for own in sets], batch_first=True).permute(2, 0, 1).to(batch.device)
            with torch.no_grad(), step.model.evaluation_mode():
                found = self._ablation_method.evaluate_masks(step.model, batch, target, there, asked).clamp(
                    min=MIN_LOG_PROBABILITY
                )
            rows = zip(sets, found.T.cpu(), strict=True)
            return [torch.cat([own.to(each), each[:, None]], 1).flatten() for own, each in rows]

        if self.lifetime and step.context.training:
            known = self.memory.get_or_compute(step.batch, target, step.context.epoch, self.lifetime, ask)
        else:
            known = ask(step.batch, target)
        tables = [each.view(self.masks, -1).T for each in known]
        present = pad_sequence([table[:-1] for table in tables], batch_first=True).transpose(1, 2)
        return present.to(unit.device), torch.stack([table[-1] for table in tables]).to(unit.device)

    def _draw_sets(self, context: StepContext, batch: Batch, target: Tensor, counts: list[int]) -> list[Tensor]:
        """Each example's sets [M, U] of its units; in evaluation the same ones each time."""
        place = context if context.training else StepContext(context.seed, training=False)
        found = []
        for name, count in zip(hash_examples(batch, target), counts, strict=True):
            random = place.generator(f"ablations of {name}")
            found.append(torch.rand(self.masks, count, generator=random) < self.keep)
        return found
