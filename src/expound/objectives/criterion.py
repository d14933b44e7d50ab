"""The base classes of IvRA's criteria, and the differentiable selection of an explanation's top positions."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers import Explainer, SinglePass
from expound.explainers.attention.weights import AttentionAll
from expound.explainers.units import number_units, sum_by_unit
from expound.models import ExplainedModel
from expound.models.checks import weigh_attention
from expound.models.hugging_face import Reference
from expound.objectives.base import AttributionObjective, Objective, TrainingStep

logger = logging.getLogger(__name__)
ATTENTION = AttentionAll()
Replacement = Literal["mask", "pad", "zero", "mixture", "attend"]
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
REFERENCES: tuple[Reference, ...] = ("mask", "pad", "zero")
TEMPERATURE = 1.0
LEAST_ATTENTION = 0.02
"""By what perturbation=attend multiplies attention to erased positions: with smaller numbers the slopes of few words,
up to their inverse, drown all others."""
MIN_RELATIVE_DEVIATION = 1e-6
"""Standard deviations below this multiple of the mean are rounding errors of equal scores."""


@dataclass(frozen=True)
class Criterion(AttributionObjective):
    """A criterion on the explanations of the step's own forward pass (Xie et al. 2024, IvRA, §2.2).

    `explainer`: a differentiable explainer that needs one pass, such as `interpretable_attention`; its parameters, if
    it has any, are trained with the model, and criteria that share an explainer train the same one. `weight`: the
    factor of the term in the total loss. `lr_multiplier`: the learning rate of the explainer's parameters, as a
    multiple of the model's.
    """

    explainer: Explainer = ATTENTION
    weight: float = 1.0
    lr_multiplier: float = 1.0
    remedy: ClassVar[str] = "Try the normalizer softmax, and more steps"

    def __post_init__(self) -> None:
        if not isinstance(self.explainer, SinglePass) or not self.explainer.differentiable:
            raise ExpoundError(f"{self.explainer.name} cannot be trained by a criterion: it does not explain in a pass")
        if self.lr_multiplier < 0:
            raise ExpoundError(f"the lr_multiplier of {self.name} is at least 0, got {self.lr_multiplier}")
        Objective.__post_init__(self)

    def predicted_target(self, step: TrainingStep) -> Tensor:
        """Return the target [B] or [B, 2] that is explained: the prediction of the step's pass, or the response."""
        return step.model.resolve_target(step.batch, "predicted", step.outputs.logits)

    def explain_prediction(self, step: TrainingStep) -> Tensor:
        """Return the scores r [B, L] for the prediction, see `compute_attribution`."""
        return self.compute_attribution(step, self.predicted_target(step))


@dataclass(frozen=True)
class ErasureCriterion(Criterion):
    """A criterion that runs the model again on partly erased inputs (IvRA, eq. 8 to 11).

    The top of an explanation are the max(1, ⌈k · n⌉) highest of the n scores at erasable positions (`Batch.erasable`:
    no special tokens, no question), without scores of 0. Erased positions get another embedding, so that a gradient
    reaches the scores (see `select_top`); metrics, in contrast, delete tokens. With `sample_fractions`, a training step
    draws one k of `fractions` for each example: an unbiased estimate of the mean over all fractions with one additional
    pass instead of one per fraction. Evaluation uses all of them.

    Args:
        explainer: see `Criterion`, as `weight` and `lr_multiplier`.
        fractions: the values of k, fractions of the erasable positions.
        sample_fractions: whether a training step draws one of them for each example.
        perturbation: what erased positions get: the embedding of the `mask` token, of `pad`, or a `zero` vector (IvRA's
            baseline); `mixture` draws one of these or words of the batch for each example, so that no single sign tells
            the model that something was erased. With `attend` the embedding stays, but other positions multiply
            their attention to it by 1/50, nearly as if it were removed; positions keep their numbers.
        detach_clean: whether the prediction on the whole input is a constant, so that a criterion cannot be met by
            making it worse.
        temperature: how far from the border between top and rest scores have a gradient, see `select_top`.
        unit: what is erased as a whole, by the sum of its scores: `token`, `word`, `source`, …
    """

    fractions: tuple[float, ...] = FRACTIONS
    sample_fractions: bool = True
    perturbation: Replacement = "mask"
    detach_clean: bool = True
    temperature: float = TEMPERATURE
    unit: UnitName = "token"
    exact_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise ExpoundError(f"the temperature of a soft choice is above 0, got {self.temperature}")
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise ExpoundError(f"expected fractions above 0 and up to 1, as 0.2 for 20 %, got {self.fractions}")

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the criterion, and say which token replaces words if the tokenizer has no mask token."""
        if self.perturbation == "mask" and getattr(model.processing_class, "mask_token_id", None) is None:
            token = model.processing_class.convert_ids_to_tokens(model.mask_id)
            logger.warning("the tokenizer has no mask token: %s replaces words by %r", self.name, token)
        return self

    @abstractmethod
    def keep_positions(self, top: Tensor) -> Tensor:
        """Return the positions that stay in the input, given the top positions; both [B, L] with values 0 to 1."""

    @abstractmethod
    def compute_losses(self, step: TrainingStep, logits: Tensor, clean_logits: Tensor) -> Tensor:
        """Return the loss [B] of each example, from the logits of the partly erased and of the whole input."""

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the batch, a scalar; examples without erasable positions count as 0."""
        if step.model.modality != "text":
            raise ExpoundError(f"{self.name} takes words away: it does not apply to images")
        scores, clean_logits = self.explain_prediction(step), step.outputs.logits
        if self.detach_clean:
            clean_logits = clean_logits.detach()
        number = number_units(replace(step.batch, content=step.batch.erasable), self.unit)
        erasable, losses = number >= 0, []
        for fractions in self._iterate_fractions(step):
            top = self._select_units(scores, number, fractions)
            keep = torch.where(erasable, self.keep_positions(top), 1.0)
            losses.append(self.compute_losses(step, self._predict(step, keep), clean_logits))
        return (torch.stack(losses).mean(0) * erasable.any(1)).mean()

    def _select_units(self, scores: Tensor, number: Tensor, fractions: Tensor) -> Tensor:
        """Return the positions [B, L] of the top units, as 0 or 1 with a gradient, see `select_top`."""
        if self.unit == "token" or not (number >= 0).any():
            return select_top(scores, number >= 0, fractions, self.temperature)
        of_units = sum_by_unit(scores, number)
        exists = torch.arange(of_units.shape[1], device=number.device) <= number.amax(1, keepdim=True)
        top = select_top(of_units, exists, fractions, self.temperature)
        return top.gather(1, number.clamp(min=0))

    def _predict(self, step: TrainingStep, keep: Tensor) -> Tensor:
        """Return the logits for the input without erased positions, for keep [B, L] from 0 to 1."""
        model, batch = step.model, step.batch
        embeddings = None
        if self.perturbation == "attend":
            # The logarithm of a weight has no derivative at 0.
            batch = weigh_attention(model, batch, keep + (keep.clamp(min=LEAST_ATTENTION) - keep).detach())
        else:
            # eq. 8 and 9, on word embeddings: the attention mask and the positions stay those of the whole input
            embeddings = self._blend(step, keep)
        logits: Tensor = model(batch, embeddings).logits
        return logits

    def _blend(self, step: TrainingStep, keep: Tensor) -> Tensor:
        """Return the embeddings [B, L, d] with those of erased positions replaced, for keep [B, L] from 0 to 1."""
        model, batch = step.model, step.batch
        assert self.perturbation != "attend"
        if self.perturbation != "mixture":
            return model.blend(batch, keep, self.perturbation)
        generator = step.generator(f"replacements of {self.name}")

        def draw(count: int, *shape: int) -> Tensor:
            return torch.randint(count, shape, generator=generator, device=batch.device)

        words = batch.inputs["input_ids"][batch.content]
        ids = words[draw(len(words), *keep.shape)] if len(words) else batch.inputs["input_ids"]
        other = model.embed(replace(batch, inputs=batch.inputs | {"input_ids": ids}))
        references = torch.stack([*(model.embed_reference(batch, kind) for kind in REFERENCES), other])
        reference = references[draw(len(references), len(batch)), torch.arange(len(batch), device=batch.device)]
        keep = keep.to(other.dtype)[..., None]
        return model.embed(batch) * keep + reference * (1 - keep)

    def _iterate_fractions(self, step: TrainingStep) -> Iterator[Tensor]:
        """Yield the fraction k of each example [B], once per forward pass."""
        # float64: the rounding error of k · n in float32 exceeds the tolerance of `select_top`
        fractions = torch.tensor(self.fractions, device=step.batch.device, dtype=torch.float64)
        if self.sample_fractions and step.context.training:
            # The name decides the draws, so it stays that of earlier runs.
            generator = step.generator(f"bins of {self.name}")
            yield fractions[
                torch.randint(len(fractions), (len(step.batch),), generator=generator, device=fractions.device)
            ]
        else:
            yield from fractions[:, None].expand(-1, len(step.batch))


def select_top(
    scores: Tensor, candidates: Tensor, fractions: Tensor | Sequence[float], temperature: float = TEMPERATURE
) -> Tensor:
    """Return which positions have the highest scores, as 0 or 1 [B, L] with a straight-through gradient.

    The gradient is taken from σ((r − τ) / T): τ is the middle between the last score inside and the first one outside
    (0 if no score is outside), T is `temperature` standard deviations of the example's scores; τ and T are constants.
    If all scores of an example are equal, it has no gradient.

    Args:
        scores: r [B, L], at least 0.
        candidates: [B, L] bool, the positions to choose from.
        fractions: [B], of each example's n candidates: max(1, ⌈fraction · n⌉) are chosen, never one with score 0.
            Of equal scores the first is chosen.
        temperature: at 0.1 only scores next to the border have a gradient, at 1 nearly all have.
    """
    count = candidates.sum(1, keepdim=True)
    fraction = torch.as_tensor(fractions, device=scores.device, dtype=torch.float64)[:, None]
    # without the subtraction 0.07 · 100 = 7.000000000000001 would be rounded up to 8
    size = (fraction * count - 1e-6).ceil().clamp(min=1).long()
    with torch.no_grad():
        values = scores.masked_fill(~candidates, -torch.inf)
        ranked, order = values.sort(dim=1, descending=True, stable=True)
        places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, order, places)
        # sparsemax gives most positions exactly 0: they would fill the quota in the order of the text
        hard = (rank < size) & candidates & (scores > 0)
        padded = torch.nn.functional.pad(ranked, (0, 1), value=-torch.inf)
        last_inside = padded.gather(1, (size - 1).clamp(max=scores.shape[1]))
        first_outside = padded.gather(1, size.clamp(max=scores.shape[1]))
        border = (last_inside.clamp(min=0) + first_outside.clamp(min=0)) / 2
        deviation = _standard_deviation(scores, candidates, count)
    soft = torch.where(candidates, ((scores - border) / (temperature * deviation)).sigmoid(), 0.0)
    # a hard top-k alone has gradient 0 everywhere: the value is hard, the gradient that of the soft selection
    return hard.to(scores) + (soft - soft.detach())


def _standard_deviation(scores: Tensor, candidates: Tensor, count: Tensor) -> Tensor:
    """Return the standard deviation of each example's candidates [B, 1]; infinite if all of them are equal."""
    count = count.clamp(min=1)
    inside = scores.masked_fill(~candidates, 0.0)
    mean = inside.sum(1, keepdim=True) / count
    squares = (inside - mean).masked_fill(~candidates, 0.0).square()
    deviation = (squares.sum(1, keepdim=True) / count).sqrt()
    # division by infinity turns the gradient of such an example off, instead of amplifying rounding errors
    return deviation.masked_fill(deviation <= MIN_RELATIVE_DEVIATION * mean, torch.inf)
