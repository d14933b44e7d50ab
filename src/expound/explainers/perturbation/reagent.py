"""ReAGent: importance updated by the change of the prediction's probability when tokens are replaced at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class Reagent(Explainer):
    """Importance by recursive replacement (Zhao and Shan 2024): a distribution over content. Unsigned.

    ζ starts uniform in [0, 1). Each step replaces tokens at random, computes δ = p(x) − p(x'), and updates
    ζ_i += logit(½ + ½ (±δ)), with + for replaced positions; the score is softmax(ζ). p is the target's probability;
    for a span it is the geometric mean of its tokens' probabilities.

    Differences from the authors' method: replacements are drawn uniformly from the vocabulary without special tokens
    (for images, from the image's own patches) and not from a masked language model; there is one run, not the mean of
    several; and the number of steps is fixed, where the authors stop once the best positions keep the answer among the
    likeliest. For a regression δ is tanh of the drop of the value.

    Args:
        n_steps: replaced inputs per example.
        fraction: probability that a token is replaced.
        seed: with the example's content it determines the draws; batching and order have no effect.

    Raises:
        ExpoundError: a number out of range, or foils.
    """

    n_steps: int = 100
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
        super().__post_init__()
        if self.n_steps < 1 or not 0 < self.fraction < 1:
            raise ExpoundError(
                f"reagent needs a step and a fraction between 0 and 1, got {self.n_steps} and {self.fraction}"
            )

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: the full input and one per step."""
        return self.n_steps + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return the softmax of the importance logits ζ over content: [B, L]."""
        if batch.foil is not None:
            raise ExpoundError("reagent explains a probability, and no difference from a foil")
        random = example_generators(batch, self.seed)
        start = torch.zeros(batch.content.shape, dtype=torch.float64)
        for row, (generator, content) in enumerate(zip(random, batch.removable.cpu(), strict=True)):
            start[row, content] = torch.from_numpy(generator.random(int(content.sum())))
        ids, replaced = draw_replacements(model, batch, random, self.n_steps, self.fraction)
        drops = probability_drops(model, batch, target, ids)
        zeta = sum_steps(start.to(drops), replaced, drops)
        zeta = zeta.masked_fill(~batch.removable, torch.finfo(zeta.dtype).min)
        return zeta.softmax(1).to(model.dtype)


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


def sum_steps(start: Tensor, replaced: Tensor, drops: Tensor) -> Tensor:
    """Return the importance logits ζ [B, L] after M updates, from replaced positions [M, B, L] and drops [M, B]."""
    signed = torch.where(replaced, drops[..., None], -drops[..., None])
    # δ = ±1 has an infinite logit, after which no other step would count.
    return start + ((1 + signed) / 2).logit(eps=1e-12).sum(0)
