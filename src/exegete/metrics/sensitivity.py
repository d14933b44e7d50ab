"""How much an explanation moves when the input hardly does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from exegete.data.alignment import words_of
from exegete.data.generated.dice import Dice
from exegete.data.swaps import Swap, applied, swaps
from exegete.errors import ExegeteError
from exegete.explainers import Explainer, attribute, explainer
from exegete.metrics.agreement import jaccard
from exegete.models import Batch, ExplainedModel
from exegete.models.encoding.encode import example_to_row
from exegete.reports.attributions import Attribution

SMALLEST = 1e-12


@torch.no_grad()
def max_sensitivity(
    model: ExplainedModel,
    batch: Batch,
    method: str | Explainer,
    target: Any = None,
    *,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
) -> Tensor:
    """The largest, over ‖δ‖∞ ≤ `radius`, of ‖φ(x + δ) − φ(x)‖₂ / ‖φ(x)‖₂, by draws (Yeh et al. 2019): [B].

    Lower is better; 0: the explanation does not move. δ moves the vector of every token of the vocabulary that is not
    special, uniformly inside the cube: a word moves alike wherever it stands, so that any method can be asked, also
    those that delete words or run paths. The target is that of the input as it is. NaN without content, or where all
    scores are 0.

    Args:
        model: explained; left as it came.
        batch: B texts.
        method: a registry id or an explainer.
        target: see `ExplainedModel.target`.
        radius: of the cube, in embedding units.
        samples: draws; more of them can only raise the value.
        seed: of the draws, which are the same for every method.

    Raises:
        ExegeteError: images, a radius below 0, no samples.
    """
    if model.modality != "text":
        raise ExegeteError("max-sensitivity moves word vectors: it does not apply to images")
    if radius < 0 or samples < 1:
        raise ExegeteError(f"expected a radius of at least 0 and at least 1 sample, got {radius} and {samples}")
    chosen = explainer(method)
    explained = model.resolve_target(batch, target)
    still = chosen.attribute(model, batch, explained).double()
    farthest = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
    for sample in range(samples):
        with _perturb_vocabulary(model, radius, f"{seed} {sample}"):
            moved = chosen.attribute(model, batch, explained).double()
        farthest = torch.maximum(farthest, (moved - still).norm(dim=1))
    size = still.norm(dim=1)
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
    """How alike a text and swapped versions of it are explained (after Ding and Koehn 2021): one value an example.

    Up to `versions` texts differ from the example in one random swap of a contraction, name, place or number (see
    `swaps`), and only those count for which the prediction stays. Of the words that the swap left alone, the Jaccard
    similarity of the top `fraction` by the two attributions of the prediction; mean over versions. NaN where there is
    nothing to swap or every swap changes the prediction.

    Raises:
        ExegeteError: no versions, or an unknown kind of swap.
    """
    if versions < 1:
        raise ExegeteError(f"expected at least one version, got {versions}")
    rows = [
        {name: value for name, value in example_to_row(example).items() if name != "rationale"} for example in examples
    ]
    found = [_draw_versions(row["text"], versions, kinds, seed) for row in rows]
    texts = [row | {"text": text} for row, each in zip(rows, found, strict=True) for _, text in each]
    clean = attribute(model, rows, method)
    changed = iter(attribute(model, texts, method) if texts else ())
    values = []
    for item, each in zip(clean, found, strict=True):
        others = [(swap, next(changed)) for swap, _ in each]
        alike = [
            _compare_words(item, other, swap, fraction) for swap, other in others if other.prediction == item.prediction
        ]
        values.append(float(np.mean(alike)) if alike else float("nan"))
    return np.asarray(values)


def _draw_versions(text: str, count: int, kinds: Sequence[str] | None, seed: int) -> list[tuple[Swap, str]]:
    """So many texts with one swap each, drawn by (seed, text)."""
    found = swaps(text, kinds=kinds, choices=count, seed=seed)
    moves = [(number, word) for number, swap in enumerate(found) for word in swap.choices]
    drawn = Dice("versions", seed, text).sample(moves, min(count, len(moves)))
    return [(found[number], applied(text, found, {number: word})) for number, word in drawn]


def _compare_words(one: Attribution, other: Attribution, swap: Swap, fraction: float) -> float:
    """Jaccard similarity over the words outside a swap, which stand in the same order on both sides."""
    grown = len(other.texts[0]) - len(one.texts[0])
    stays = [_scores_outside(item, swap.start, swap.end + more) for item, more in ((one, 0), (other, grown))]
    size = min(map(len, stays))
    return jaccard(stays[0][:size], stays[1][:size], fraction)


def _scores_outside(item: Attribution, start: int, end: int) -> NDArray[np.float64]:
    """Scores of the words that do not overlap the characters `start` to `end` of the first text."""
    spans = [(word.start, word.end) for word in words_of(item.texts[0])]
    first = [score for score, (side, *_) in zip(item.word_scores, item.word_spans, strict=True) if side == 0]
    kept = [score for score, (a, b) in zip(first, spans, strict=False) if b <= start or end <= a]
    rest = [score for score, (side, *_) in zip(item.word_scores, item.word_spans, strict=True) if side]
    return np.asarray([*kept, *rest], dtype=np.float64)


@contextmanager
def _perturb_vocabulary(model: ExplainedModel, radius: float, draw: str) -> Iterator[None]:
    """Inside the block every word vector is another one, at most `radius` away; what was remembered does not count."""
    special = torch.tensor(sorted(model.special_ids | {model.pad_id, model.mask_id}), device=model.device)

    def shift(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        ids, where = inputs[0].unique(return_inverse=True)
        rows = [_draw_direction(draw, number, output.shape[-1]) for number in ids.tolist()]
        moves = radius * torch.stack(rows).to(output)
        moves[torch.isin(ids, special)] = 0
        return output + moves[where]

    with model.lock(), model.embedding.register_forward_hook(shift):
        remembered, model.perturbation_cache = model.perturbation_cache, None
        try:
            yield
        finally:
            model.perturbation_cache = remembered


def _draw_direction(draw: str, token: int, width: int) -> Tensor:
    """Uniform in [-1, 1], decided by the draw and the token alone."""
    seed = Dice("direction", draw, token).below(1 << 46)
    return 2 * torch.rand(width, generator=torch.Generator().manual_seed(seed)) - 1
