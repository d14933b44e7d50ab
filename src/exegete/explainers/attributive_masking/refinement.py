"""Masks refined for the example at hand: every example's own copy of the masking model, trained a few steps (fAML)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.explainers.attributive_masking.copies import copied_weights, side_by_side
from exegete.explainers.attributive_masking.reading import Reading
from exegete.explainers.seeding import generators
from exegete.models import Batch, ExplainedModel

if TYPE_CHECKING:
    from exegete.explainers.attributive_masking.explainer import AttributiveMasking


class Judge(Protocol):
    """What a metric is to refinement; metrics stand above explainers."""

    @property
    def name(self) -> str:
        """Of its values."""

    @property
    def card(self) -> Any:
        """Says whether higher is better."""

    def judge(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None) -> dict[str, Tensor]:
        """Values [B] of attributions [B, L] by name."""


@dataclass(frozen=True)
class Refinement:
    """What is done for every example at inference (Barkan et al. 2024, §3.1).

    A copy of the masking model, without dropout, takes `refine_steps` AdamW steps on the example's own loss; embeddings
    stay, those of the answer too. The map before every step and after the last is judged by `metric`, and the best one
    is kept, the first among equals: what is reported by that metric has been selected on it.

    Args:
        refine_steps: 0 for none; the paper has up to 10.
        metric: a metric by spec; default: the one that the masking model was chosen by.
        refine_rate: the first step's learning rate, which falls linearly to 0 at `nominal_steps`; default: training's.
        rank: 0: copies are whole, as in the paper; else low-rank changes of each linear layer.
        together: examples refined side by side.
    """

    refine_steps: int = 0
    metric: str | None = None
    refine_rate: float | None = None
    rank: int = 0
    together: int = 32

    def __post_init__(self) -> None:
        if self.refine_steps < 0 or self.rank < 0 or self.together < 1:
            raise ExegeteError(
                "expected refine_steps and rank of at least 0 and together of at least 1, got "
                f"{self.refine_steps}, {self.rank} and {self.together}"
            )
        if self.refine_rate is not None and not self.refine_rate > 0:
            raise ExegeteError(f"expected a refine_rate above 0, got {self.refine_rate}")
        if self.metric is not None:
            metric_of(self.metric)


def refined(masking: AttributiveMasking, model: ExplainedModel, batch: Batch, answer: Tensor, target: Tensor) -> Tensor:
    """The best of each example's maps by the metric: [B, L].

    Args:
        masking: with its refinement.
        model: the explained model.
        batch: B examples.
        answer: y [B, C].
        target: [B] the explained classes.
    """
    metric = metric_of(masking.refinement.metric or masking.settings.metric)
    found = masking.answers.detach().new_zeros(batch.content.shape)
    for rows in alike(batch, masking.refinement.together):
        part, columns = batch.select(rows).trimmed()
        best = Best(metric.card.higher_is_better)
        with model.remember():
            for scores in trajectory(masking, model, part, answer[rows]):
                best.take(scores, metric.judge(model, part, scores, target[rows])[metric.name])
        assert best.maps is not None
        found[rows, columns] = best.maps
    return found


def alike(batch: Batch, together: int) -> list[Tensor]:
    """The rows of a batch in parts of at most so many, examples of like lengths in one part."""
    order = batch.attended.sum(1).argsort(stable=True)
    return list(order.split(together))


def trajectory(masking: AttributiveMasking, model: ExplainedModel, batch: Batch, answer: Tensor) -> Iterator[Tensor]:
    """Each example's maps [B, L] while its own copy of the masking model is trained: before every step, after the last.

    Args:
        masking: with its refinement, of which `together` and `metric` are not looked at; it stays as it is.
        model: the explained model.
        batch: B examples, all refined side by side.
        answer: y [B, C].
    """
    case = _Case(masking, model, batch, masking.read(model, batch), answer)
    choice, copies = masking.refinement, case.copies()
    weights = list(copied_weights(copies))
    rate, nominal = choice.refine_rate or masking.settings.learning_rate, masking.settings.nominal_steps
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=True)
    for step in range(choice.refine_steps + 1):
        with torch.enable_grad():
            own = copies(case.reading, answer)
            scores = masking.onto(case.reading, own)
        yield scores.detach()
        if step < choice.refine_steps:
            optimizer.zero_grad()
            with torch.enable_grad():
                case.loss(own, scores, step).backward(inputs=weights)
            optimizer.param_groups[0]["lr"] = rate * max(0.0, 1 - step / nominal)
            optimizer.step()


def metric_of(spec: str) -> Judge:
    """The metric of a spec; metrics stand above explainers, so it is looked up when it is asked for."""
    from exegete.metrics import metric  # noqa: PLC0415

    return metric(spec)


@dataclass(frozen=True)
class _Case:
    """A few examples and their copies of the masking model."""

    masking: AttributiveMasking
    model: ExplainedModel
    batch: Batch
    reading: Reading
    answer: Tensor

    def copies(self) -> AttributiveMasking:
        """One for each example; what is not trained here is the masking model's own."""
        masking = self.masking
        fixed = [masking.answers, masking.masking.embedding]
        trained = [weight for weight in fixed if weight is not None and weight.requires_grad]
        for weight in trained:
            weight.requires_grad_(False)
        try:
            shared = (masking.read, masking.reader.processing_class, masking.reader.config, masking.settings)
            copies = side_by_side(masking, len(self.batch), masking.refinement.rank, shared)
        finally:
            for weight in trained:
                weight.requires_grad_(True)
        assert isinstance(copies, type(masking))
        return copies

    def loss(self, own: Tensor, scores: Tensor, step: int) -> Tensor:
        """The sum of the examples' losses; both masks go through the model in one pass."""
        modes, weights = self.masking.masking, self.masking.settings.weights
        twice = self.batch.select([*range(len(self.batch))] * 2)
        reference = modes.reference(self.model, self.batch, self._drawn(step))
        doubled = None if reference is None else reference.detach().repeat(2, 1, 1)
        logits = modes.logits(self.model, twice, torch.cat([scores, 1 - scores]), doubled)
        kept, without = logits.chunk(2)
        return weights.total(kept, without, self.answer, own, self.reading.own.content).sum()

    def _drawn(self, step: int) -> Tensor:
        """[B, L] Numbers that depend on the example and the step alone."""
        drawn = np.zeros(tuple(self.batch.content.shape), np.float32)
        if self.masking.masking.mode == "random":
            each = zip(drawn, self.batch.content.cpu().numpy(), generators(self.batch, step), strict=True)
            for row, content, random in each:
                row[content] = random.random(int(content.sum()))
        return torch.from_numpy(drawn).to(self.batch.device)


@dataclass
class Best:
    """The best maps so far; a value that is no number never beats one, and equal ones leave the earlier map."""

    higher_is_better: bool
    maps: Tensor | None = None
    values: Tensor = field(default_factory=lambda: torch.zeros(0))

    def take(self, maps: Tensor, values: Tensor) -> None:
        """Maps [B, L] with their values [B]."""
        worth = (values if self.higher_is_better else -values).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        if self.maps is None:
            self.maps, self.values = maps, worth
            return
        better = worth > self.values
        self.maps = torch.where(better[:, None], maps, self.maps)
        self.values = torch.where(better, worth, self.values)
