"""ReAGent: importance updated by the change of the prediction's probability when tokens are replaced at random."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import Explainer
from expound.explainers.gradients.paths import scores_at
from expound.explainers.seeding import example_generators
from expound.models import Batch, ExplainedModel
from expound.models.tasks import Generation, Task

MAX_STEPS, BLOCK = 1000, 10
"""Steps of `auto` at most, and steps that run in the same passes."""
KEPT_POSITIONS, TOP_ANSWERS = 5, {"generation": 3, "span": 3}
"""The stopping rule: with so many positions kept, the target is among the so many likeliest answers of its task."""


@dataclass(frozen=True)
class Reagent(Explainer):
    """Importance by recursive replacement (Zhao and Shan 2024): a distribution over content. Unsigned.

    ζ starts uniform in [0, 1). Each step replaces tokens at random, computes δ = p(x) − p(x'), and updates
    ζ_i += logit(½ + ½ (±δ)), with + for replaced positions; the score is softmax(ζ). p is the target's probability;
    for a span it is the geometric mean of its tokens' probabilities.

    Differences from the authors' method: replacements are drawn uniformly from the vocabulary without special tokens
    (for images, from the image's own patches) and not from a masked language model, and there is one run, not the mean
    of several. For a regression δ is tanh of the drop of the value.

    Args:
        n_steps: replaced inputs per example, or `auto` for the authors' rule: stop once the 5 best positions suffice,
            that is, with all others replaced, every explained token is among the 3 likeliest (a class: the likeliest).
            `auto` runs at most 1,000 steps and takes a second pass per step for the test.
        fraction: probability that a token is replaced.
        seed: with the example's content it determines the draws; batching and order have no effect.

    Raises:
        ExpoundError: a number out of range, foils, or `auto` for a regression, which has no likeliest answer.
    """

    n_steps: int | Literal["auto"] = 100
    fraction: float = 0.3
    seed: int = 0
    card: ClassVar = MethodCard(
        name="reagent", label="ReAGent", family="perturbation", cost="(n_steps + 1) F", paper="Zhao and Shan 2024",
        unit="share of importance",
        equation=r"\zeta_i \mathrel{+}= \text{logit}(\frac{1}{2} + \frac{1}{2} (\pm \delta)), \; s = "
        r"\text{softmax}(\zeta)",
        use="Use it to compare with ReAGent on generated text.",
        avoid="Do not use it when you can afford only few passes: the default is a hundred.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if (self.n_steps != "auto" and self.n_steps < 1) or not 0 < self.fraction < 1:
            raise ExpoundError(
                f"reagent needs a step and a fraction between 0 and 1, got {self.n_steps} and {self.fraction}"
            )

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: the full input and one per step, or at most two per step with `auto`."""
        return (2.0 * MAX_STEPS if self.n_steps == "auto" else self.n_steps) + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return softmax(ζ) over content: [B, L]."""
        if batch.foil is not None:
            raise ExpoundError("reagent explains a probability, and no difference from a foil")
        random = example_generators(batch, self.seed)
        start = torch.zeros(batch.content.shape, dtype=torch.float64)
        for row, (generator, content) in enumerate(zip(random, batch.removable.cpu(), strict=True)):
            start[row, content] = torch.from_numpy(generator.random(int(content.sum())))
        if self.n_steps == "auto":
            zeta = self._run_until_sufficient(model, batch, target, start.to(batch.device), random)
        else:
            ids, replaced = draw_replacements(model, batch, random, self.n_steps, self.fraction)
            drops = probability_drops(model, batch, target, ids)
            zeta = sum_steps(start.to(drops), replaced, drops)
        zeta = zeta.masked_fill(~batch.removable, torch.finfo(zeta.dtype).min)
        return zeta.softmax(1).to(model.dtype)

    def _run_until_sufficient(
        self, model: ExplainedModel, batch: Batch, target: Tensor, zeta: Tensor, random: list[np.random.Generator]
    ) -> Tensor:
        """Return ζ [B, L] of each example after the first step whose best positions suffice."""
        if model.task.predicts_number:
            raise ExpoundError("a regression has no likeliest answer: give reagent a number of steps")
        running = list(range(len(batch)))
        # `BLOCK` steps share passes; those after the sufficient one are computed in vain and discarded.
        for _ in range(MAX_STEPS // BLOCK):
            part, generators = batch.select(running), [random[row] for row in running]
            part_target = target[running]
            ids, replaced = draw_replacements(model, part, generators, BLOCK, self.fraction)
            others, _ = draw_replacements(model, part, generators, BLOCK, 1.0)
            steps = compute_steps(replaced, probability_drops(model, part, part_target, ids)).to(zeta)
            path = zeta[running] + steps.cumsum(0)
            sufficient = is_sufficient(model, part, part_target, path, others)
            done = sufficient.any(0)
            last = torch.where(done, sufficient.long().argmax(0), BLOCK - 1)
            zeta[running] = path[last, torch.arange(len(running))]
            running = [row for row, finished in zip(running, done.tolist(), strict=True) if not finished]
            if not running:
                break
        return zeta


def draw_replacements(
    model: ExplainedModel, batch: Batch, random: list[np.random.Generator], n_steps: int, fraction: float
) -> tuple[Tensor, Tensor]:
    """Return inputs with replaced tokens [M, B, L], and a mask [M, B, L] of the replaced positions.

    Each removable position is replaced with probability `fraction`. The draws depend on the example's generator only.
    """
    ids = input_numbers(model, batch).expand(n_steps, -1, -1).clone()
    replaced = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (generator, content) in enumerate(zip(random, batch.removable.cpu(), strict=True)):
        size = (n_steps, int(content.sum()))
        replaced[:, row, content] = torch.from_numpy(generator.random(size) < fraction)
        if not size[1]:
            continue
        candidates = candidate_tokens(model) if model.modality == "text" else content.nonzero()[:, 0].numpy()
        tokens = torch.from_numpy(generator.choice(candidates, size)).to(ids)
        place = content.to(ids.device)
        ids[:, row, place] = torch.where(replaced[:, row, content].to(ids.device), tokens, ids[:, row, place])
    return ids, replaced.to(ids.device)


def is_sufficient(model: ExplainedModel, batch: Batch, target: Tensor, path: Tensor, others: Tensor) -> Tensor:
    """Return whether the best positions by ζ keep the prediction if the rest becomes `others` [M, B, L]: [M, B]."""
    candidates = path.masked_fill(~batch.removable, -torch.inf)
    best = candidates.topk(min(KEPT_POSITIONS, batch.length), -1).indices
    kept = torch.zeros_like(others, dtype=torch.bool).scatter_(2, best, True) | ~batch.removable
    ids = torch.where(kept, input_numbers(model, batch), others)
    ranking_model = copy(model)
    ranking_model.task = TargetRank(model.task)
    rank = _evaluate_inputs(ranking_model, batch, target, ids)
    return rank.view(len(ids), len(batch)) < TOP_ANSWERS.get(model.task.name, 1)


def input_numbers(model: ExplainedModel, batch: Batch) -> Tensor:
    """Return the token id at each position, or for images the number of the patch: [B, L]."""
    if model.modality == "text":
        return batch.inputs["input_ids"]
    return torch.arange(batch.length, device=batch.device).expand(len(batch), -1)


def candidate_tokens(model: ExplainedModel) -> NDArray[np.int64]:
    """Return the ids that may replace a token: all but the special tokens, as far as they are known."""
    special = {model.pad_id} if model.processing_class is None else model.special_ids
    vocabulary = np.arange(int(model.config.get_text_config().vocab_size))
    return vocabulary[~np.isin(vocabulary, list(special))]


def _evaluate_inputs(model: ExplainedModel, batch: Batch, target: Tensor, ids: Tensor) -> Tensor:
    """Return the target's score for inputs [M, B, L] given by their ids: [M · B]."""
    flat_ids = ids.flatten(0, 1)
    rows = torch.arange(len(batch), device=batch.device).repeat(len(ids))
    embeddings = model.embed(batch)

    def embed_rows(index: Tensor) -> Tensor:
        if model.modality == "text":
            words: Tensor = model.embedding(flat_ids[index])
            return words
        return embeddings[rows[index]].gather(1, flat_ids[index, :, None].expand(-1, -1, embeddings.shape[-1]))

    return scores_at(model, batch, target, rows, embed_rows)


def probability_drops(model: ExplainedModel, batch: Batch, target: Tensor, ids: Tensor) -> Tensor:
    """Return p(x) − p(x') in float64 for replaced inputs [M, B, L], or tanh of a regression's drop: [M, B]."""
    is_regression = model.task.predicts_number
    log_model = model.with_output(None if is_regression else "log_prob")
    whole_first = torch.cat([input_numbers(model, batch)[None], ids])
    values = _evaluate_inputs(log_model, batch, target, whole_first).double().view(-1, len(batch))
    if is_regression:
        # A value has no bounds; tanh keeps δ in (−1, 1), where the logit of the update is defined.
        return (values[0] - values[1:]).tanh()
    # The geometric mean per token: probabilities of long spans would all be near 0, and with them every δ.
    probabilities = (values / model.task.count_tokens(target)).exp()
    return probabilities[0] - probabilities[1:]


def compute_steps(replaced: Tensor, drops: Tensor) -> Tensor:
    """Return the change of ζ at each step [M, B, L], from replaced positions [M, B, L] and drops [M, B]."""
    signed = torch.where(replaced, drops[..., None], -drops[..., None])
    # δ = ±1 has an infinite logit, after which no other step would count.
    return ((1 + signed) / 2).logit(eps=1e-12)


def sum_steps(start: Tensor, replaced: Tensor, drops: Tensor) -> Tensor:
    """Return the importance logits ζ [B, L] after M updates, from replaced positions [M, B, L] and drops [M, B]."""
    return start + compute_steps(replaced, drops).sum(0)


class TargetRank(Task):
    """A task whose score is the number of outputs that are likelier than the target's.

    For a target of several tokens, or of a start and an end, it is the largest of their numbers.

    Args:
        task: the task that the target belongs to.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        # A pass is narrowed, and its input cut, as for the task itself.
        facts = ("name", "is_read_at_positions", "is_generated", "reads_context")
        vars(self).update({fact: getattr(task, fact) for fact in facts})

    def shift(self, target: Tensor, start: int | Tensor) -> Tensor:
        """Return the task's own target, see `Task.shift`."""
        return self.task.shift(target, start)

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the task's own logits; for generated text the rank of each response token [B, R]."""
        if not isinstance(self.task, Generation):
            return self.task.logits(output, batch)
        # Ranks are counted here, where the logits of the whole vocabulary still exist.
        full, ids, real = self.task.read_logits(output, batch)
        return (full > full.gather(-1, ids)).sum(-1) * real

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the logits: ranks have no probabilities."""
        return logits

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the number of likelier outputs: [B]."""
        if isinstance(self.task, Generation):
            step = torch.arange(logits.shape[1], device=logits.device)
            inside = (step >= target[:, :1]) & (step < target[:, 1:])
            return (logits * inside).amax(1)
        places = target if target.ndim > 1 else target[:, None]
        rows = logits if logits.ndim > 2 else logits[:, None]
        return (rows > rows.gather(2, places[..., None])).sum(2).amax(1)
