"""Refinement of masks (fAML): a copy of the masking model for each example, trained a few steps on it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.explainers.attributive_masking.copies import copy_weights, make_copies
from expound.explainers.attributive_masking.network import MaskingNetwork
from expound.explainers.attributive_masking.retokenization import RetokenizedBatch
from expound.explainers.map_metric import MapMetric, load_metric
from expound.explainers.seeding import example_generators
from expound.models import Batch, ExplainedModel
from expound.models.layers.architecture import get_layers
from expound.models.passes.hooks import skip_unread_positions
from expound.models.state import freeze_weights


def refine_maps(masking: MaskingNetwork, model: ExplainedModel, batch: Batch, answer: Tensor, target: Tensor) -> Tensor:
    """Return the best of each example's maps by the metric of the refinement: [B, L].

    Args:
        masking: the masking model with its refinement.
        model: the explained model.
        batch: B examples.
        answer: y [B, C], the explained model's prediction.
        target: [B] the explained classes.
    """
    metric = load_metric(masking.refinement.metric or masking.settings.metric)
    best = masking.answers.detach().new_zeros(batch.content.shape)
    for rows in group_by_length(batch, masking.refinement.batch_size):
        part, columns = batch.select(rows).trim_padding()
        maps = torch.stack(list(trajectory(masking, model, part, answer[rows])))
        values = evaluate_maps(metric, model, part, maps, target[rows])
        best[rows, columns] = select_best(maps, values, metric.card.higher_is_better)
    return best


def evaluate_maps(metric: MapMetric, model: ExplainedModel, batch: Batch, maps: Tensor, target: Tensor) -> Tensor:
    """Return the metric's values [M, B] of maps [M, B, L]."""
    if metric.compares_examples:
        return torch.stack([metric.evaluate(model, batch, scores, target)[metric.name] for scores in maps])
    # One call for all maps: those that keep the same tokens of an example then run the model once.
    copies = batch.select(torch.arange(len(batch)).repeat(len(maps)))
    values = metric.evaluate(model, copies, maps.flatten(0, 1), target.repeat(len(maps)))[metric.name]
    return values.view(len(maps), len(batch))


def select_best(maps: Tensor, values: Tensor, higher_is_better: bool) -> Tensor:
    """Return each example's best map [B, L] by values [M, B], the first one of equal values; NaN is the worst value."""
    ranking = (values if higher_is_better else -values).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    return maps[ranking.argmax(0), torch.arange(maps.shape[1], device=maps.device)]


def group_by_length(batch: Batch, batch_size: int) -> list[Tensor]:
    """Return the rows of a batch in groups of similar length, of at most `batch_size` and at most a fifth padding."""
    sorted_lengths, order = batch.attended.sum(1).sort(stable=True)
    groups: list[list[int]] = [[]]
    real_tokens = 0
    for length, row in zip(sorted_lengths.tolist(), order.tolist(), strict=True):
        real_tokens += length
        # Rows come by increasing length, so the group would be padded to this one.
        padded_tokens = length * (len(groups[-1]) + 1)
        if len(groups[-1]) == batch_size or 5 * real_tokens < 4 * padded_tokens:
            groups.append([])
            real_tokens = length
        groups[-1].append(row)
    return [torch.tensor(group, device=batch.device) for group in groups if group]


def trajectory(masking: MaskingNetwork, model: ExplainedModel, batch: Batch, answer: Tensor) -> Iterator[Tensor]:
    """Yield each example's maps [B, L] before every step of its copy's training and after the last.

    Args:
        masking: the masking model with its refinement, whose `batch_size` and `metric` are not used; not changed.
        model: the explained model.
        batch: B examples, which are all refined side by side.
        answer: y [B, C], the explained model's prediction.
    """
    examples = _RefinementBatch(masking, model, batch, masking.retokenize(model, batch), answer)
    refinement, copies = masking.refinement, examples.copies()
    weights = list(copy_weights(copies))
    rate, nominal = refinement.refine_rate or masking.settings.learning_rate, masking.settings.nominal_steps
    # A new optimizer for each example, as in the reference code: moments of other examples would leak into it.
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=True)
    for step in range(refinement.refine_steps + 1):
        with torch.enable_grad():
            own_scores = copies(examples.retokenized, answer)
            scores = masking.map_scores(examples.retokenized, own_scores)
        yield scores.detach()
        if step < refinement.refine_steps:
            optimizer.zero_grad()
            with torch.enable_grad():
                # Only the copies get gradients; those of shared weights would be computed and never used.
                examples.loss(own_scores, scores, step).backward(inputs=weights)
            optimizer.param_groups[0]["lr"] = rate * max(0.0, 1 - step / nominal)
            optimizer.step()


@dataclass(frozen=True)
class _RefinementBatch:
    """Examples that are refined side by side."""

    masking: MaskingNetwork
    model: ExplainedModel
    batch: Batch
    retokenized: RetokenizedBatch
    answer: Tensor

    def copies(self) -> MaskingNetwork:
        """Return the masking model with a copy of its trainable weights for each example."""
        masking = self.masking
        # Embeddings of the prediction and of the mask are shared, though they are trained otherwise.
        fixed = [masking.answers, masking.masking.embedding]
        trained = [weight for weight in fixed if weight is not None and weight.requires_grad]
        for weight in trained:
            weight.requires_grad_(False)
        try:
            shared = (masking.retokenize, masking.reader.processing_class, masking.reader.config, masking.settings)
            copies = make_copies(
                masking, len(self.batch), masking.refinement.lora_rank, shared, self._recorded_layers()
            )
        finally:
            for weight in trained:
                weight.requires_grad_(True)
        assert isinstance(copies, MaskingNetwork)
        return copies

    def loss(self, own_scores: Tensor, scores: Tensor, step: int) -> Tensor:
        """Return the sum of the examples' losses (eq. 4)."""
        modes, weights = self.masking.masking, self.masking.settings.weights
        reference = self._draw_reference(step) if modes.mode == "random" else self._reference
        # The mask and its inverse share one pass of the explained model.
        with freeze_weights(self.model), skip_unread_positions(self.model, self._doubled):
            logits = modes.logits(self.model, self._doubled, torch.cat([scores, 1 - scores]), reference)
        kept, without = logits.chunk(2)
        return weights.total(kept, without, self.answer, own_scores, self.retokenized.own.content).sum()

    def _recorded_layers(self) -> dict[nn.Module, nn.Module]:
        """Return replacements for the layers that do not change, which return their recorded output."""
        masking, upper = self.masking, self.masking.refinement.refine_layers
        if upper is None:
            return {}
        return record_lower_layers(masking.reader.model, upper, lambda: masking(self.retokenized, self.answer))

    @cached_property
    def _doubled(self) -> Batch:
        """The examples twice, for the mask and its inverse."""
        return self.batch.select([*range(len(self.batch))] * 2)

    @cached_property
    def _reference(self) -> Tensor | None:
        """The reference embeddings of masked tokens, the same at every step."""
        return self._draw_reference(0)

    @torch.no_grad()
    def _draw_reference(self, step: int) -> Tensor | None:
        reference = self.masking.masking.reference(self.model, self.batch, self._draw_numbers(step))
        return None if reference is None else reference.repeat(2, 1, 1)

    def _draw_numbers(self, step: int) -> Tensor:
        """Return random numbers [B, L] that depend on the example and the step only."""
        numbers = np.zeros(tuple(self.batch.content.shape), np.float32)
        if self.masking.masking.mode == "random":
            contents = self.batch.content.cpu().numpy()
            for row, content, random in zip(numbers, contents, example_generators(self.batch, step), strict=True):
                row[content] = random.random(int(content.sum()))
        return torch.from_numpy(numbers).to(self.batch.device)


class RecordedLayer(nn.Module):
    """A replacement for a layer that returns a recorded output for any input."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any, **__: Any) -> Any:
        """Return the recorded output."""
        return self.output


def record_lower_layers(backbone: PreTrainedModel, upper: int, run: Callable[[], Any]) -> dict[nn.Module, nn.Module]:
    """Return replacements for all but the `upper` last layers, so that an encoder computes only the last ones.

    All replacements return the output that the highest of the replaced layers had in `run`.

    Args:
        backbone: an encoder; it is not changed.
        upper: number of layers that are still computed, from 0.
        run: a function that runs the backbone; called once, without a graph.

    Raises:
        ExpoundError: more layers than the encoder has, or a family whose layers share their weights.
    """
    layers = get_layers(backbone)
    # ALBERT repeats one layer: replacing the lower ones would replace all.
    if len(set(layers)) < len(layers):
        raise ExpoundError(
            f"the layers of {type(backbone).__name__} share their weights: refine all of them, without refine_layers"
        )
    if upper > len(layers):
        raise ExpoundError(f"expected refine_layers of at most {len(layers)}, the number of layers, got {upper}")
    lower = layers[: len(layers) - upper]
    if not lower:
        return {}
    outputs: list[Any] = []
    with torch.no_grad(), lower[-1].register_forward_hook(lambda *call: outputs.append(call[-1])):
        run()
    # The same output for all: only the highest one's reaches a layer that is computed.
    return dict.fromkeys(lower, RecordedLayer(outputs[0]))
