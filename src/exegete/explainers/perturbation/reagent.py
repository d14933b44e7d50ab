"""Importance updated by how the answer's probability moves when tokens are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers.base import Explainer
from exegete.explainers.gradients.paths import scores_at
from exegete.explainers.seeding import generators
from exegete.models import Batch, ExplainedModel


@dataclass(frozen=True)
class Reagent(Explainer):
    """Importance by recursive replacement (Zhao and Shan 2024): a distribution over content. Unsigned.

    From ζ ~ U(0, 1) on: replace tokens at random, δ = p(x) − p(x'), and ζ_i += logit(½ + ½ (±δ)), + where i was
    replaced; the score is softmax(ζ). p is the target's probability, of a span the geometric mean of its tokens'.
    Every position moves by the same amount, so a score counts signs weighted by |δ|.

    It departs from the authors: tokens are drawn evenly from the vocabulary without special tokens, not from a masked
    language model (patches: from the picture's own), and the number of steps is fixed, instead of a test whether the
    best tokens suffice. Of a regression δ is tanh of the value's fall.

    Args:
        steps: replaced inputs an example.
        ratio: the probability that a token is replaced.
        seed: with the example's own content it decides the draws; batching and order change nothing.

    Raises:
        ExegeteError: a number out of range; foils.
    """

    steps: int = 100
    ratio: float = 0.3
    seed: int = 0
    card: ClassVar = MethodCard(
        name="reagent", label="ReAGent", family="perturbation", cost="(steps + 1) F", paper="Zhao and Shan 2024"
    )

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.ratio < 1:
            raise ExegeteError(f"reagent needs a step and a ratio between 0 and 1, got {self.steps} and {self.ratio}")

    def passes(self, length: int) -> tuple[float, float]:
        """The whole input, and one a step."""
        return self.steps + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """softmax(ζ) over content, from draws of the example's own."""
        if batch.foil is not None:
            raise ExegeteError("reagent explains a probability, and no difference from a foil")
        ids = named(model, batch).expand(self.steps, -1, -1).clone()
        replaced = torch.zeros(ids.shape, dtype=torch.bool)
        start = torch.zeros(batch.content.shape, dtype=torch.float64)
        for row, (random, content) in enumerate(zip(generators(batch, self.seed), batch.removable.cpu(), strict=True)):
            size = (self.steps, int(content.sum()))
            start[row, content] = torch.from_numpy(random.random(size[1]))
            replaced[:, row, content] = torch.from_numpy(random.random(size) < self.ratio)
            pool = replacements(model) if model.modality == "text" else content.nonzero()[:, 0].numpy()
            tokens = torch.from_numpy(random.choice(pool, size)).to(ids) if size[1] else ids[:, row, :0]
            place = content.to(ids.device)
            ids[:, row, place] = torch.where(replaced[:, row, content].to(ids.device), tokens, ids[:, row, place])
        drops = probability_drops(model, batch, target, ids)
        found = importance(start.to(drops), replaced.to(ids.device), drops)
        found = found.masked_fill(~batch.removable, torch.finfo(found.dtype).min)
        return found.softmax(1).to(model.dtype)


def named(model: ExplainedModel, batch: Batch) -> Tensor:
    """[B, L] The number that says what stands at a position: a token's id, or of pictures the patch's position."""
    if model.modality == "text":
        return batch.inputs["input_ids"]
    return torch.arange(batch.length, device=batch.device).expand(len(batch), -1)


def replacements(model: ExplainedModel) -> NDArray[np.int64]:
    """The ids that take a token's place: all but special ones, as far as they are known."""
    special = {model.pad_id} if model.processing_class is None else model.special_ids
    everything = np.arange(int(model.config.get_text_config().vocab_size))
    return everything[~np.isin(everything, list(special))]


def probability_drops(model: ExplainedModel, batch: Batch, target: Tensor, ids: Tensor) -> Tensor:
    """[M, B] p(x) − p(x') in float64, for replaced inputs [M, B, L]; tanh of a regression's fall."""
    everything = torch.cat([named(model, batch)[None], ids]).flatten(0, 1)
    rows = torch.arange(len(batch), device=batch.device).repeat(len(ids) + 1)
    own = model.embed(batch)

    def embedded(index: Tensor) -> Tensor:
        if model.modality == "text":
            words: Tensor = model.embedding(everything[index])
            return words
        return own[rows[index]].gather(1, everything[index, :, None].expand(-1, -1, own.shape[-1]))

    regression = model.task.name == "regression"
    scores = scores_at(model.with_output(None if regression else "log_prob"), batch, target, rows, embedded)
    if regression:
        values = scores.double().view(-1, len(batch))
        return (values[0] - values[1:]).tanh()
    size = target[:, 1] - target[:, 0] if model.task.name == "generation" else 1
    chances = (scores.double().view(-1, len(batch)) / size).exp()
    return chances[0] - chances[1:]


def importance(start: Tensor, replaced: Tensor, drops: Tensor) -> Tensor:
    """ζ [B, L] after all steps, from ζ at the start, replaced positions [M, B, L] and drops [M, B]."""
    signed = torch.where(replaced, drops[..., None], -drops[..., None])
    return start + ((1 + signed) / 2).logit(eps=1e-12).sum(0)
