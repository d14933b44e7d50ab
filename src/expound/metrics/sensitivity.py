"""Sensitivity of explanations to small changes of the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from expound.data.alignment import split_words
from expound.data.generated.keyed_random import KeyedRandom
from expound.data.swaps import Swap, apply_swaps, find_swaps
from expound.errors import ExpoundError
from expound.explainers import Explainer, attribute, explainer
from expound.metrics.agreement import jaccard
from expound.models import Batch, ExplainedModel
from expound.models.encoding.encode import example_to_row
from expound.reports.explanations import Explanation

SMALLEST = 1e-12


@torch.no_grad()
def max_sensitivity(
    model: ExplainedModel,
    batch: Batch,
    method: str | Explainer,
    target: Any = None,
    *,
    radius: float = 0.02,
    n_samples: int = 10,
    seed: int = 0,
) -> Tensor:
    """Return the largest ‖φ(x + δ) − φ(x)‖₂ / ‖φ(x)‖₂ over random δ with ‖δ‖∞ ≤ `radius` (Yeh et al. 2019): [B].

    Lower is better; 0: the explanation does not change. δ is added to the word vector of every token of the vocabulary
    that is not special, so that all occurrences of a word move in the same way. This works for every method, including
    which delete words or integrate along paths. NaN without content, or if all scores are 0.

    Args:
        model: the explained model; its state is restored.
        batch: B texts.
        method: a registry id or an explainer.
        target: what to explain, see `ExplainedModel.resolve_target`; resolved on the unchanged input.
        radius: half the side of the cube that δ is drawn from uniformly, in units of the embeddings.
        n_samples: number of draws; more draws can only increase the value.
        seed: determines the draws, which are the same for every method.

    Raises:
        ExpoundError: images, a radius below 0, no samples.
    """
    if model.modality != "text":
        raise ExpoundError("max-sensitivity moves word vectors: it does not apply to images")
    if radius < 0 or n_samples < 1:
        raise ExpoundError(f"expected a radius of at least 0 and at least 1 sample, got {radius} and {n_samples}")
    method_to_test = explainer(method, model)
    explained = model.resolve_target(batch, target)
    original = method_to_test.attribute(model, batch, explained).double()
    farthest = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
    for sample in range(n_samples):
        with _perturb_vocabulary(model, radius, f"{seed} {sample}"):
            perturbed = method_to_test.attribute(model, batch, explained).double()
        farthest = torch.maximum(farthest, (perturbed - original).norm(dim=1))
    size = original.norm(dim=1)
    ratio: Tensor = farthest / size.clamp(min=SMALLEST)
    return ratio.masked_fill(size == 0, torch.nan).float()


def input_consistency(
    model: ExplainedModel,
    examples: Sequence[Any],
    method: str | Explainer,
    *,
    versions: int = 4,
    fraction: float = 0.25,
    kinds: Sequence[str] | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Return how similarly each text and its swapped versions are explained [E] (after Ding and Koehn 2021).

    Each version differs from the example in one random swap of a contraction, name, place or number. Versions with
    another prediction do not count. The value is the Jaccard similarity of the top `fraction` of the unchanged words
    by the two attributions, averaged over versions. NaN if no word can be swapped or every swap changes the prediction.

    Args:
        model: the explained model.
        examples: texts or pairs.
        method: a registry id or an explainer.
        versions: number of versions of each example, at most.
        fraction: share of the words that count as the top.
        kinds: kinds of swaps; default: all.
        seed: determines the swaps.

    Raises:
        ExpoundError: no versions, or an unknown kind of swap.
    """
    if versions < 1:
        raise ExpoundError(f"expected at least one version, got {versions}")
    rows = []
    for example in examples:
        row = dict(example_to_row(example))
        # Swaps shift characters, which would make the spans of a rationale invalid.
        row.pop("rationale", None)
        rows.append(row)
    versions_of = [_draw_versions(row["text"], versions, kinds, seed) for row in rows]
    changed_rows = []
    for row, swapped in zip(rows, versions_of, strict=True):
        changed_rows += [row | {"text": text} for _, text in swapped]
    originals = attribute(model, rows, method)
    changed = iter(attribute(model, changed_rows, method) if changed_rows else ())
    values = []
    for original, swapped in zip(originals, versions_of, strict=True):
        similarities = []
        for swap, _ in swapped:
            version = next(changed)
            if _read_prediction(version) == _read_prediction(original):
                similarities.append(_compare_words(original, version, swap, fraction))
        values.append(float(np.mean(similarities)) if similarities else float("nan"))
    return np.asarray(values)


def _draw_versions(text: str, count: int, kinds: Sequence[str] | None, seed: int) -> list[tuple[Swap, str]]:
    """Return up to `count` texts with one swap each, drawn by the seed and the text."""
    passages = find_swaps(text, kinds=kinds, choices=count, seed=seed)
    moves: list[tuple[int, str]] = []
    for number, swap in enumerate(passages):
        moves += [(number, word) for word in swap.choices]
    drawn = KeyedRandom("versions", seed, text).sample(moves, min(count, len(moves)))
    return [(passages[number], apply_swaps(text, passages, {number: word})) for number, word in drawn]


def _compare_words(one: Explanation, other: Explanation, swap: Swap, fraction: float) -> float:
    """Return the Jaccard similarity over the words outside a swap, which keep their order on both sides."""
    growth = len(other.texts[0]) - len(one.texts[0])
    left = _scores_outside(one, swap.start, swap.end)
    right = _scores_outside(other, swap.start, swap.end + growth)
    # A longer version may lose words to truncation: compare those that both have.
    size = min(len(left), len(right))
    return jaccard(left[:size], right[:size], fraction)


def _read_prediction(item: Explanation) -> object:
    return None if item.prediction is None else item.prediction.value


def _scores_outside(item: Explanation, start: int, end: int) -> NDArray[np.float64]:
    """Return scores of the words that do not overlap the characters `start` to `end` of the first text."""
    scored = list(zip(item.scores[0], item.units, strict=True))
    first = [score for score, unit in scored if unit.segment == 0]
    second = [score for score, unit in scored if unit.segment]
    outside = []
    for score, word in zip(first, split_words(item.texts[0]), strict=False):
        if word.end <= start or end <= word.start:
            outside.append(score)
    return np.asarray([*outside, *second], dtype=np.float64)


@contextmanager
def _perturb_vocabulary(model: ExplainedModel, radius: float, draw: str) -> Iterator[None]:
    """Add a random vector, at most `radius` in each dimension, to every word vector inside the block."""
    special = torch.tensor(sorted(model.special_ids | {model.pad_id, model.mask_id}), device=model.device)

    def shift(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        ids, where = inputs[0].unique(return_inverse=True)
        directions = [_draw_direction(draw, number, output.shape[-1]) for number in ids.tolist()]
        deltas = radius * torch.stack(directions).to(output)
        deltas[torch.isin(ids, special)] = 0
        return output + deltas[where]

    with model.lock(), model.embedding.register_forward_hook(shift):
        # Cached predictions belong to the original word vectors.
        cache, model.perturbation_cache = model.perturbation_cache, None
        try:
            yield
        finally:
            model.perturbation_cache = cache


def _draw_direction(draw: str, token: int, width: int) -> Tensor:
    """Return a vector [d] uniform in [−1, 1], determined by the draw and the token alone."""
    seed = KeyedRandom("direction", draw, token).randrange(1 << 46)
    return 2 * torch.rand(width, generator=torch.Generator().manual_seed(seed)) - 1
