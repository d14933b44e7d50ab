"""Masks refined for the example at hand: every example's own copy of the masking model, trained a few steps (fAML)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError
from exegete.explainers.attributive_masking.copies import copy_weights, make_copies
from exegete.explainers.attributive_masking.frozen_layers import record_lower_layers
from exegete.explainers.attributive_masking.retokenization import RetokenizedBatch
from exegete.explainers.seeding import example_generators
from exegete.models import Batch, ExplainedModel
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.state.restore import freeze_weights

if TYPE_CHECKING:
    from exegete.explainers.attributive_masking.explainer import AttributiveMasking


class MapMetric(Protocol):
    """The part of a metric that refinement needs; metrics stand above explainers."""

    compares_examples: ClassVar[bool]

    @property
    def name(self) -> str:
        """The name that its values are returned under."""

    @property
    def card(self) -> Any:
        """Says whether higher is better."""

    def evaluate(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[str, Tensor]:
        """Values [B] of attributions [B, L] by name."""


@dataclass(frozen=True)
class Refinement:
    """Refinement of the masking model for every example at inference (Barkan et al. 2024, §3.1).

    A copy of the masking model, without dropout, takes `refine_steps` AdamW steps on the example's own loss; embeddings
    stay, those of the answer too. The map before every step and after the last is judged by `metric`, and the best one
    is kept, the first among equals: what is reported by that metric has been selected on it.

    A step of all of G costs two forward and two backward passes of the explained model and, with the gradients of its
    weights, three passes of G. With `refine_layers` the layers below them run once for all steps.

    Args:
        refine_steps: 0 for none; the paper has up to 10.
        refine_layers: how many of the uppermost layers change, with the head on top of them; 0: the head alone;
            default: all layers, as in the paper.
        metric: a metric by spec; default: the one that the masking model was chosen by.
        refine_rate: the first step's learning rate, which falls linearly to 0 at `nominal_steps`; default: training's.
        rank: 0: copies are whole, as in the paper; else low-rank changes of each linear layer.
        together: examples refined side by side.
    """

    refine_steps: int = 0
    refine_layers: int | None = None
    metric: str | None = None
    refine_rate: float | None = None
    rank: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        least = {"refine_steps": 0, "refine_layers": 0, "rank": 0, "batch_size": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ExegeteError(f"expected {name} of at least {low}, got {value}")
        if self.refine_rate is not None and not self.refine_rate > 0:
            raise ExegeteError(f"expected a refine_rate above 0, got {self.refine_rate}")
        if self.metric is not None:
            load_metric(self.metric)


def refine_maps(
    masking: AttributiveMasking, model: ExplainedModel, batch: Batch, answer: Tensor, target: Tensor
) -> Tensor:
    """The best of each example's maps by the metric: [B, L].

    Args:
        masking: with its refinement.
        model: the explained model.
        batch: B examples.
        answer: y [B, C].
        target: [B] the explained classes.
    """
    metric = load_metric(masking.refinement.metric or masking.settings.metric)
    found = masking.answers.detach().new_zeros(batch.content.shape)
    for rows in group_by_length(batch, masking.refinement.batch_size):
        part, columns = batch.select(rows).trim_padding()
        maps = torch.stack(list(trajectory(masking, model, part, answer[rows])))
        found[rows, columns] = select_best(
            maps, evaluate_maps(metric, model, part, maps, target[rows]), metric.card.higher_is_better
        )
    return found


def evaluate_maps(metric: MapMetric, model: ExplainedModel, batch: Batch, maps: Tensor, target: Tensor) -> Tensor:
    """The metric's values [M, B] of maps [M, B, L].

    All maps are judged in one call: where they leave the same tokens of an example, the model is asked once.
    """
    if metric.compares_examples:
        return torch.stack([metric.evaluate(model, batch, each, target)[metric.name] for each in maps])
    copies = batch.select(torch.arange(len(batch)).repeat(len(maps)))
    values = metric.evaluate(model, copies, maps.flatten(0, 1), target.repeat(len(maps)))[metric.name]
    return values.view(len(maps), len(batch))


def select_best(maps: Tensor, values: Tensor, higher_is_better: bool) -> Tensor:
    """Each example's best map [B, L] by values [M, B]: the first among equals; what is no number never beats one."""
    worth = (values if higher_is_better else -values).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    return maps[worth.argmax(0), torch.arange(maps.shape[1], device=maps.device)]


def group_by_length(batch: Batch, batch_size: int) -> list[Tensor]:
    """The rows of a batch in parts of at most `batch_size`, of like lengths: at most a fifth of a part is padding."""
    lengths, order = (each.tolist() for each in batch.attended.sum(1).sort(stable=True))
    parts: list[list[int]] = [[]]
    real = 0
    for length, row in zip(lengths, order, strict=True):
        real += length
        if len(parts[-1]) == batch_size or 5 * real < 4 * length * (len(parts[-1]) + 1):
            parts.append([])
            real = length
        parts[-1].append(row)
    return [torch.tensor(part, device=batch.device) for part in parts if part]


def trajectory(masking: AttributiveMasking, model: ExplainedModel, batch: Batch, answer: Tensor) -> Iterator[Tensor]:
    """Each example's maps [B, L] while its own copy of the masking model is trained: before every step, after the last.

    Args:
        masking: with its refinement, of which `batch_size` and `metric` are not looked at; it stays as it is.
        model: the explained model.
        batch: B examples, all refined side by side.
        answer: y [B, C].
    """
    case = _RefinementBatch(masking, model, batch, masking.retokenize(model, batch), answer)
    choice, copies = masking.refinement, case.copies()
    weights = list(copy_weights(copies))
    rate, nominal = choice.refine_rate or masking.settings.learning_rate, masking.settings.nominal_steps
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=True)
    for step in range(choice.refine_steps + 1):
        with torch.enable_grad():
            own = copies(case.reading, answer)
            scores = masking.map_scores(case.reading, own)
        yield scores.detach()
        if step < choice.refine_steps:
            optimizer.zero_grad()
            with torch.enable_grad():
                case.loss(own, scores, step).backward(inputs=weights)
            optimizer.param_groups[0]["lr"] = rate * max(0.0, 1 - step / nominal)
            optimizer.step()


def load_metric(spec: str) -> MapMetric:
    """The metric of a spec; metrics stand above explainers, so it is looked up when it is asked for."""
    from exegete.metrics import metric  # noqa: PLC0415

    return metric(spec)


@dataclass(frozen=True)
class _RefinementBatch:
    """A few examples and their copies of the masking model."""

    masking: AttributiveMasking
    model: ExplainedModel
    batch: Batch
    reading: RetokenizedBatch
    answer: Tensor

    def copies(self) -> AttributiveMasking:
        """One for each example; what is not trained here is the masking model's own."""
        masking = self.masking
        fixed = [masking.answers, masking.masking.embedding]
        trained = [weight for weight in fixed if weight is not None and weight.requires_grad]
        for weight in trained:
            weight.requires_grad_(False)
        try:
            shared = (masking.retokenize, masking.reader.processing_class, masking.reader.config, masking.settings)
            copies = make_copies(masking, len(self.batch), masking.refinement.rank, shared, self._known())
        finally:
            for weight in trained:
                weight.requires_grad_(True)
        assert isinstance(copies, type(masking))
        return copies

    def loss(self, own: Tensor, scores: Tensor, step: int) -> Tensor:
        """The sum of the examples' losses; both masks go through the model in one pass."""
        modes, weights = self.masking.masking, self.masking.settings.weights
        reference = self._drawn_reference(step) if modes.mode == "random" else self._reference
        with freeze_weights(self.model), skip_unread_positions(self.model):
            logits = modes.logits(self.model, self._twice, torch.cat([scores, 1 - scores]), reference)
        kept, without = logits.chunk(2)
        return weights.total(kept, without, self.answer, own, self.reading.own.content).sum()

    def _known(self) -> dict[nn.Module, nn.Module]:
        """Stand-ins for the layers that do not change, with the answer recorded for these examples."""
        masking, upper = self.masking, self.masking.refinement.refine_layers
        if upper is None:
            return {}
        return record_lower_layers(masking.reader.model, upper, lambda: masking(self.reading, self.answer))

    @cached_property
    def _twice(self) -> Batch:
        """The examples for a mask and its inverse."""
        return self.batch.select([*range(len(self.batch))] * 2)

    @cached_property
    def _reference(self) -> Tensor | None:
        """The reference for masked tokens, the same at every step, for a mask and its inverse."""
        return self._drawn_reference(0)

    @torch.no_grad()
    def _drawn_reference(self, step: int) -> Tensor | None:
        reference = self.masking.masking.reference(self.model, self.batch, self._drawn(step))
        return None if reference is None else reference.repeat(2, 1, 1)

    def _drawn(self, step: int) -> Tensor:
        """[B, L] Numbers that depend on the example and the step alone."""
        drawn = np.zeros(tuple(self.batch.content.shape), np.float32)
        if self.masking.masking.mode == "random":
            each = zip(drawn, self.batch.content.cpu().numpy(), example_generators(self.batch, step), strict=True)
            for row, content, random in each:
                row[content] = random.random(int(content.sum()))
        return torch.from_numpy(drawn).to(self.batch.device)
