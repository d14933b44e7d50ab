"""Randomness that belongs to an example, not to the batch it happens to be in."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import torch

from exegete.models import Batch


def example_seeds(batch: Batch, seed: int) -> Iterator[int]:
    """A number an example, from `seed` and the example's own content: batching and order change nothing."""
    values = batch.inputs.get("input_ids", batch.inputs.get("pixel_values"))
    assert values is not None
    known = values.to("cpu", torch.float32 if values.is_floating_point() else values.dtype)
    key = (seed % (1 << 64)).to_bytes(8, "big")
    for value, content in zip(known, batch.content.cpu(), strict=True):
        own = value if value.ndim > 1 else value[content]
        digest = blake2b(own.contiguous().numpy().tobytes(), digest_size=8, key=key)
        yield int.from_bytes(digest.digest())


def example_generators(batch: Batch, seed: int) -> list[np.random.Generator]:
    """A generator an example; see `example_seeds`."""
    return [np.random.default_rng(number) for number in example_seeds(batch, seed)]
