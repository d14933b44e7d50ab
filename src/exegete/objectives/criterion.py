"""The shared parts of IvRA's criteria: an explanation that is trained, and the mask of its top."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError
from exegete.explainers import Explainer, SinglePass
from exegete.explainers.attention.weights import AttentionAll
from exegete.objectives.attribution_objective import AttributionObjective
from exegete.objectives.base import TrainingStep

ATTENTION = AttentionAll()
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)
TEMPERATURE = 0.1
MIN_RELATIVE_DEVIATION = 1e-6


@dataclass(frozen=True)
class Criterion(AttributionObjective):
    """A demand on the explanations of the step's own pass (Xie et al. 2024, IvRA, §2.2).

    `explainer`: a differentiable method that needs one pass, such as `interpretable_attention`. If it has parameters
    they are trained with the model; criteria that are given the same explainer train the same one. `weight`: what the
    term is multiplied by in the sum. `lr_multiplier`: how many times the model's learning rate the explainer's
    parameters have.
    """

    explainer: Explainer = ATTENTION
    weight: float = 1.0
    lr_multiplier: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.explainer, SinglePass) or not self.explainer.differentiable:
            raise ExegeteError(f"{self.explainer.name} cannot be trained by a criterion: it does not explain in a pass")
        if self.weight < 0 or self.lr_multiplier < 0:
            raise ExegeteError(
                f"weight and lr_multiplier of {self.name} are at least 0, got {self.weight} and {self.lr_multiplier}"
            )

    @property
    def learned(self) -> nn.Module | None:
        """The explainer, where it has parameters."""
        return self.explainer if isinstance(self.explainer, nn.Module) else None

    def predicted_target(self, step: TrainingStep) -> Tensor:
        """The target that is explained: the prediction of the step's pass, [B] (spans: [B, 2])."""
        return step.model.resolve_target(step.batch, "predicted", step.outputs.logits)

    def explain_prediction(self, step: TrainingStep) -> Tensor:
        """R [B, L], special tokens included, in float32 at least; anything at padding."""
        return self.compute_attribution(step, self.predicted_target(step))


@dataclass(frozen=True)
class ErasureCriterion(Criterion):
    """A criterion that asks the model again with some of the input taken away (IvRA, eq. 8 to 11).

    The top of an explanation are its highest scores at positions that may be taken away (`Batch.erasable`: no special
    tokens, no question), max(1, ⌈k · n⌉) of n but none that is 0. What is away is replaced in the embeddings, so that a
    gradient can pass (`select_top`); metrics delete. With `sample_bins`, a step draws one k of `bins` for each
    example, and the term is an unbiased estimate of its mean over them at one more pass instead of one for each; in
    evaluation all are taken.

    Args:
        explainer: see `Criterion`, as `weight` and `lr_multiplier`.
        bins: each k, a share of the positions that may be taken away.
        sample_bins: whether a training step draws one of them for each example.
        reference: what takes the place: the `mask` token's embedding, `pad`, or a `zero` vector (IvRA's baseline).
        detach_clean: whether the clean answer is held still, so that a criterion cannot be met by spoiling it.
        temperature: how far from the border scores still have a gradient, see `select_top`.
    """

    bins: tuple[float, ...] = BINS
    sample_bins: bool = True
    reference: Literal["mask", "pad", "zero"] = "mask"
    detach_clean: bool = True
    temperature: float = TEMPERATURE
    exact_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise ExegeteError(f"the temperature of a soft choice is above 0, got {self.temperature}")
        if not self.bins or not all(0 < share <= 1 for share in self.bins):
            raise ExegeteError(f"expected bins above 0 and up to 1, as 0.2 for 20 %, got {self.bins}")

    @abstractmethod
    def keep_positions(self, top: Tensor) -> Tensor:
        """The positions that stay in the input, from the explanation's top positions, both [B, L]."""

    @abstractmethod
    def compute_losses(self, step: TrainingStep, left: Tensor, clean: Tensor) -> Tensor:
        """[B] The loss of each example, from the logits of what stays and of the whole input."""

    def __call__(self, step: TrainingStep) -> Tensor:
        """A scalar; examples with nothing that may be taken away count as 0."""
        if step.model.modality != "text":
            raise ExegeteError(f"{self.name} takes words away: it does not apply to images")
        scores, clean = self.explain_prediction(step), step.outputs.logits
        clean = clean.detach() if self.detach_clean else clean
        possible = step.batch.erasable
        losses = []
        for shares in self._iterate_fractions(step):
            top = select_top(scores, possible, shares, self.temperature)
            embeddings = step.model.blend(step.batch, self._staying(top, possible), self.reference)
            losses.append(self.compute_losses(step, step.model(step.batch, embeddings).logits, clean))
        return (torch.stack(losses).mean(0) * possible.any(1)).mean()

    def _staying(self, top: Tensor, possible: Tensor) -> Tensor:
        return torch.where(possible, self.keep_positions(top), 1.0)

    def _iterate_fractions(self, step: TrainingStep) -> Iterator[Tensor]:
        """[B] Each example's k, one pass after the other."""
        bins = torch.tensor(self.bins, device=step.batch.device, dtype=torch.float64)
        if self.sample_bins and step.context.training:
            drawn = step.generator(f"bins of {self.name}")
            yield bins[torch.randint(len(bins), (len(step.batch),), generator=drawn, device=bins.device)]
        else:
            yield from bins[:, None].expand(-1, len(step.batch))


def select_top(
    scores: Tensor, possible: Tensor, shares: Tensor | Sequence[float], temperature: float = TEMPERATURE
) -> Tensor:
    """Which positions have the highest scores: 0 or 1 [B, L], with the gradient of a soft choice.

    The gradient is that of σ((r − τ) / T): τ halfway between the last score that is in and the first that is out (0 if
    none is), T `temperature` standard deviations of the example's scores; τ and T are held still. Where an example's
    scores do not differ there is no gradient.

    Args:
        scores: r [B, L], at least 0.
        possible: [B, L] bool, the positions to choose from.
        shares: [B], of each example's possible positions; max(1, ⌈share · n⌉) are chosen, but none with a score of 0.
            Among equal scores the first.
        temperature: at a tenth hardly any score but those next to the border has a gradient, at 1 nearly all have.
    """
    count = possible.sum(1, keepdim=True)
    share = torch.as_tensor(shares, device=scores.device, dtype=torch.float64)[:, None]
    size = (share * count - 1e-6).ceil().clamp(min=1).long()
    with torch.no_grad():
        values = scores.masked_fill(~possible, -torch.inf)
        ranked, order = values.sort(dim=1, descending=True, stable=True)
        places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, order, places)
        hard = (rank < size) & possible & (scores > 0)
        padded = torch.nn.functional.pad(ranked, (0, 1), value=-torch.inf)
        last_in, first_out = (padded.gather(1, (size + shift).clamp(max=scores.shape[1])) for shift in (-1, 0))
        middle = (last_in.clamp(min=0) + first_out.clamp(min=0)) / 2
        spread = _standard_deviation(scores, possible, count)
    soft = torch.where(possible, ((scores - middle) / (temperature * spread)).sigmoid(), 0.0)
    return hard.to(scores) + (soft - soft.detach())


def _standard_deviation(scores: Tensor, possible: Tensor, count: Tensor) -> Tensor:
    """[B, 1] The standard deviation of possible scores; infinite where they are all alike."""
    count = count.clamp(min=1)
    inside = scores.masked_fill(~possible, 0.0)
    mean = inside.sum(1, keepdim=True) / count
    deviation = ((inside - mean).masked_fill(~possible, 0.0).square().sum(1, keepdim=True) / count).sqrt()
    return deviation.masked_fill(deviation <= MIN_RELATIVE_DEVIATION * mean, torch.inf)
