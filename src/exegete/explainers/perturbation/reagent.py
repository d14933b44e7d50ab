"""Importance updated by how the answer's probability moves when tokens are replaced."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers.base import Explainer
from exegete.explainers.gradients.paths import scores_at
from exegete.explainers.perturbation.target_rank import TargetRank
from exegete.explainers.seeding import example_generators
from exegete.models import Batch, ExplainedModel

MAX_STEPS, BLOCK = 1000, 10
KEPT_POSITIONS, TOP_ANSWERS = 5, {"generation": 3, "span": 3}


@dataclass(frozen=True)
class Reagent(Explainer):
    """Importance by recursive replacement (Zhao and Shan 2024): a distribution over content. Unsigned.

    From ζ ~ U(0, 1) on: replace tokens at random, δ = p(x) − p(x'), and ζ_i += logit(½ + ½ (±δ)), + where i was
    replaced; the score is softmax(ζ). p is the target's probability, of a span the geometric mean of its tokens'.
    Every position moves by the same amount, so a score counts signs weighted by |δ|.

    It departs from the authors: tokens are drawn evenly from the vocabulary without special tokens, not from a masked
    language model (patches: from the picture's own), and there is one run, no mean of several. Of a regression δ is
    tanh of the value's fall.

    Args:
        steps: replaced inputs an example. `auto`, the authors' rule: no more steps once the 5 best positions suffice:
            with all others replaced, every token explained is among the 3 likeliest (a class: the likeliest). At most
            1,000; each step then takes a second pass, the test.
        ratio: the probability that a token is replaced.
        seed: with the example's own content it decides the draws; batching and order change nothing.

    Raises:
        ExegeteError: a number out of range; foils; `auto` for a regression, which has no likeliest.
    """

    steps: int | Literal["auto"] = 100
    ratio: float = 0.3
    seed: int = 0
    card: ClassVar = MethodCard(
        name="reagent", label="ReAGent", family="perturbation", cost="(steps + 1) F", paper="Zhao and Shan 2024",
        unit="share of importance",
        equation=r"\zeta_i \mathrel{+}= \text{logit}(\frac{1}{2} + \frac{1}{2} (\pm \delta)), \; s = "
        r"\text{softmax}(\zeta)",
        use="Use it to compare with ReAGent on generated text.",
        avoid="Do not use it when you can afford only few passes: the default is a hundred.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if (self.steps != "auto" and self.steps < 1) or not 0 < self.ratio < 1:
            raise ExegeteError(f"reagent needs a step and a ratio between 0 and 1, got {self.steps} and {self.ratio}")

    def passes(self, length: int) -> tuple[float, float]:
        """The whole input, and one a step; `auto`: at most two a step."""
        return (2.0 * MAX_STEPS if self.steps == "auto" else self.steps) + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """softmax(ζ) over content, from draws of the example's own."""
        if batch.foil is not None:
            raise ExegeteError("reagent explains a probability, and no difference from a foil")
        random = example_generators(batch, self.seed)
        start = torch.zeros(batch.content.shape, dtype=torch.float64)
        for row, (own, content) in enumerate(zip(random, batch.removable.cpu(), strict=True)):
            start[row, content] = torch.from_numpy(own.random(int(content.sum())))
        if self.steps == "auto":
            found = self._run_until_sufficient(model, batch, target, start.to(batch.device), random)
        else:
            ids, replaced = draw_replacements(model, batch, random, self.steps, self.ratio)
            drops = probability_drops(model, batch, target, ids)
            found = sum_steps(start.to(drops), replaced, drops)
        found = found.masked_fill(~batch.removable, torch.finfo(found.dtype).min)
        return found.softmax(1).to(model.dtype)

    def _run_until_sufficient(
        self, model: ExplainedModel, batch: Batch, target: Tensor, zeta: Tensor, random: list[np.random.Generator]
    ) -> Tensor:
        """ζ [B, L] of each example after the first step whose best positions suffice, `BLOCK` steps at a time."""
        if model.task.name == "regression":
            raise ExegeteError("a regression has no likeliest answer: give reagent a number of steps")
        running = list(range(len(batch)))
        for _ in range(MAX_STEPS // BLOCK):
            part, own, here = batch.select(running), [random[row] for row in running], target[running]
            ids, replaced = draw_replacements(model, part, own, BLOCK, self.ratio)
            others, _ = draw_replacements(model, part, own, BLOCK, 1.0)
            moves = compute_steps(replaced, probability_drops(model, part, here, ids)).to(zeta)
            path = zeta[running] + moves.cumsum(0)
            enough = is_sufficient(model, part, here, path, others)
            last = torch.where(enough.any(0), enough.long().argmax(0), BLOCK - 1)
            zeta[running] = path[last, torch.arange(len(running))]
            running = [row for row, done in zip(running, enough.any(0).tolist(), strict=True) if not done]
            if not running:
                break
        return zeta


def draw_replacements(
    model: ExplainedModel, batch: Batch, random: list[np.random.Generator], steps: int, ratio: float
) -> tuple[Tensor, Tensor]:
    """Inputs [M, B, L] with tokens drawn for a `ratio` of the removable positions, and where [M, B, L] these are."""
    ids = input_numbers(model, batch).expand(steps, -1, -1).clone()
    replaced = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (own, content) in enumerate(zip(random, batch.removable.cpu(), strict=True)):
        size = (steps, int(content.sum()))
        replaced[:, row, content] = torch.from_numpy(own.random(size) < ratio)
        pool = candidate_tokens(model) if model.modality == "text" else content.nonzero()[:, 0].numpy()
        tokens = torch.from_numpy(own.choice(pool, size)).to(ids) if size[1] else ids[:, row, :0]
        place = content.to(ids.device)
        ids[:, row, place] = torch.where(replaced[:, row, content].to(ids.device), tokens, ids[:, row, place])
    return ids, replaced.to(ids.device)


def is_sufficient(model: ExplainedModel, batch: Batch, target: Tensor, path: Tensor, others: Tensor) -> Tensor:
    """Return whether the best positions of ζ [M, B, L] keep the answer when the rest is `others` [M, B, L]: [M, B]."""
    hidden = path.masked_fill(~batch.removable, -torch.inf)
    best = hidden.topk(min(KEPT_POSITIONS, batch.length), -1).indices
    kept = torch.zeros_like(others, dtype=torch.bool).scatter_(2, best, True) | ~batch.removable
    ids = torch.where(kept, input_numbers(model, batch), others)
    judge = copy(model)
    judge.task = TargetRank(model.task)
    ahead = _evaluate_inputs(judge, batch, target, ids)
    return ahead.view(len(ids), len(batch)) < TOP_ANSWERS.get(model.task.name, 1)


def input_numbers(model: ExplainedModel, batch: Batch) -> Tensor:
    """[B, L] The number that says what stands at a position: a token's id, or of pictures the patch's position."""
    if model.modality == "text":
        return batch.inputs["input_ids"]
    return torch.arange(batch.length, device=batch.device).expand(len(batch), -1)


def candidate_tokens(model: ExplainedModel) -> NDArray[np.int64]:
    """The ids that take a token's place: all but special ones, as far as they are known."""
    special = {model.pad_id} if model.processing_class is None else model.special_ids
    everything = np.arange(int(model.config.get_text_config().vocab_size))
    return everything[~np.isin(everything, list(special))]


def _evaluate_inputs(model: ExplainedModel, batch: Batch, target: Tensor, ids: Tensor) -> Tensor:
    """[M·B] The score of inputs [M, B, L] given by their ids."""
    everything = ids.flatten(0, 1)
    rows = torch.arange(len(batch), device=batch.device).repeat(len(ids))
    own = model.embed(batch)

    def embedded(index: Tensor) -> Tensor:
        if model.modality == "text":
            words: Tensor = model.embedding(everything[index])
            return words
        return own[rows[index]].gather(1, everything[index, :, None].expand(-1, -1, own.shape[-1]))

    return scores_at(model, batch, target, rows, embedded)


def probability_drops(model: ExplainedModel, batch: Batch, target: Tensor, ids: Tensor) -> Tensor:
    """[M, B] p(x) − p(x') in float64, for replaced inputs [M, B, L]; tanh of a regression's fall."""
    regression = model.task.name == "regression"
    judge = model.with_output(None if regression else "log_prob")
    values = (
        _evaluate_inputs(judge, batch, target, torch.cat([input_numbers(model, batch)[None], ids]))
        .double()
        .view(-1, len(batch))
    )
    if regression:
        return (values[0] - values[1:]).tanh()
    size = target[:, 1] - target[:, 0] if model.task.name == "generation" else 1
    chances = (values / size).exp()
    return chances[0] - chances[1:]


def compute_steps(replaced: Tensor, drops: Tensor) -> Tensor:
    """[M, B, L] By how much each step moves ζ, from replaced positions [M, B, L] and drops [M, B]."""
    signed = torch.where(replaced, drops[..., None], -drops[..., None])
    return ((1 + signed) / 2).logit(eps=1e-12)


def sum_steps(start: Tensor, replaced: Tensor, drops: Tensor) -> Tensor:
    """ζ [B, L] after all steps, from ζ at the start, replaced positions [M, B, L] and drops [M, B]."""
    return start + compute_steps(replaced, drops).sum(0)
