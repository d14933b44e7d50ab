"""Randomness that depends on an example and a seed, not on the batch the example is in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from expound.models import Batch


def example_seeds(batch: Batch, seed: int) -> Iterator[int]:
    """Yield a number per example, from `seed` and the example's own content, independent of batch and order."""
    values = batch.inputs.get("input_ids", batch.inputs.get("pixel_values"))
    assert values is not None
    # NumPy has no bfloat16, so pixels are hashed in float32.
    if values.is_floating_point():
        values = values.float()
    values = values.cpu()
    key = (seed % (1 << 64)).to_bytes(8, "big")
    for value, content in zip(values, batch.content.cpu(), strict=True):
        # Tokens outside content depend on padding and on the model's special tokens; pixels have none.
        own = value if value.ndim > 1 else value[content]
        digest = blake2b(own.contiguous().numpy().tobytes(), digest_size=8, key=key)
        yield int.from_bytes(digest.digest())


def example_generators(batch: Batch, seed: int) -> list[np.random.Generator]:
    """Return a random generator per example, see `example_seeds`."""
    return [np.random.default_rng(number) for number in example_seeds(batch, seed)]


def draw_numbers(batch: Batch, counts: Tensor, samples: int, seed: int) -> Tensor:
    """Return a uniform number from [0, 1) for each unit and draw [N, B, U] in float64; ∞ for padding units.

    They depend on the seed and on the example's content, not on the batch or the method. `counts` [B]: units.
    """
    drawn = np.full((samples, len(batch), max(1, int(counts.max()))), np.inf)
    for row, (count, random) in enumerate(zip(counts.tolist(), example_generators(batch, seed), strict=True)):
        drawn[:, row, :count] = random.random((samples, count))
    return torch.from_numpy(drawn).to(batch.device)


def gaussian_noise(batch: Batch, embeddings: Tensor, share: float, seeds: Iterable[int]) -> Tensor:
    """Return Gaussian noise [B, L, d] for input embeddings [B, L, d], zero at padding.

    Args:
        batch: B examples.
        embeddings: their input embeddings.
        share: standard deviation, as a share of the range of an example's own embeddings; in a prompt with images,
            those of its words and those of its images have a range each.
        seeds: one per example, as `example_seeds` gives them.
    """
    noise = torch.zeros_like(embeddings)
    for row, (attended, seed) in enumerate(zip(batch.attended, seeds, strict=True)):
        own = embeddings[row, attended]
        # Drawn for the attended positions only, in order, so that padding on either side changes nothing. NumPy draws
        # the same numbers on every device.
        normal = np.random.default_rng(seed).standard_normal(tuple(own.shape), np.float32)
        noise[row, attended] = torch.from_numpy(normal).to(own) * share
        kinds = [attended]
        if batch.region_of is not None:
            # What a vision encoder gives is often several times larger than words, which its noise would drown.
            is_image = batch.region_of[row] >= 0
            kinds = [attended & ~is_image, attended & is_image]
        for kind in kinds:
            if kind.any():
                noise[row, kind] *= embeddings[row, kind].max() - embeddings[row, kind].min()
    return noise
