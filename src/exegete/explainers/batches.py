"""Examples in batches of similar length, their targets, and the time that a pass over them takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.models.encoding.encode import example_to_row

TOKENS_PER_BATCH, TOKENS_PER_BATCH_ON_CPU = 4096, 1024
"""Token budget of a batch on a CPU: larger ones are slower, and take memory in proportion."""
TIMED_EXAMPLES = 16
"""Examples on which a pass is timed."""


def as_sequence(examples: Any) -> Sequence[Any]:
    """Return a single example as a list of one, and a dataset or a sequence unchanged."""
    is_image = hasattr(examples, "convert") or (isinstance(examples, np.ndarray) and examples.ndim in (2, 3))
    if isinstance(examples, str | Mapping | tuple) or is_image:
        return [examples]
    if not isinstance(examples, Iterable):
        raise ExegeteError(f"expected an example or several, got {examples!r:.80}")
    sequence: Any = examples
    if not isinstance(examples, Sequence) and not hasattr(examples, "features"):
        sequence = list(examples)
    if not sequence:
        raise ExegeteError("there is nothing to explain: no example was given")
    return sequence  # type: ignore[no-any-return]


def make_batches(
    model: ExplainedModel, examples: Sequence[Any], batch_size: int | None = None,
    cpu_budget: int = TOKENS_PER_BATCH_ON_CPU,
) -> Iterator[list[int]]:  # fmt: skip
    """Yield the indices of the examples of each batch: similar lengths together, short examples first.

    A batch has `batch_size` examples, or as many as fit a budget of padded tokens.
    """
    if batch_size is not None and batch_size < 1:
        raise ExegeteError(f"batch_size is at least 1, got {batch_size}")
    sizes = np.array([_count_characters(example_to_row(example)) for example in examples])
    order = np.argsort(sizes, kind="stable")
    # About four characters per token, and two special tokens: tokenizing twice would cost more than it saves.
    estimate = np.minimum(sizes[order] // 4 + 2, model.max_length)
    budget = cpu_budget if model.device.type == "cpu" else TOKENS_PER_BATCH
    start = 0
    while start < len(examples):
        # A batch of n examples has n times the tokens of its longest, which comes last.
        padded = estimate[start + 1 :] * np.arange(2, len(examples) - start + 1)
        size = batch_size or 1 + int(np.searchsorted(padded, budget, "right"))
        stop = min(start + size, len(examples))
        yield order[start:stop].tolist()
        start = stop


def _count_characters(row: Mapping[str, Any]) -> int:
    """Return a row's length in characters, which is exact enough to sort by; images are all the same length."""
    if "image" in row:
        return 4 * 256
    columns = ("text", "text_pair", "prompt", "messages", "sources", "response")
    return sum(len(str(row.get(column) or "")) for column in columns)


def read_metadata(example: Any) -> dict[str, Any]:
    """Return what a row says about itself beside its input: its `id`, and the columns that a reader kept."""
    if not isinstance(example, Mapping):
        return {}
    own: dict[str, Any] = {"id": example["id"]} if example.get("id") is not None else {}
    return own | dict(json.loads(example.get("kept") or "{}"))


def select_targets(target: Any, indices: Sequence[int], count: int) -> Any:
    """Return the targets of the examples at `indices`, given one target per example or one for all `count`."""
    if target is None or (isinstance(target, str) and target in ("predicted", "label")):
        return target
    targets = target.tolist() if isinstance(target, Tensor) else target
    if not isinstance(targets, list):
        targets = [targets] * count
    if len(targets) != count:
        raise ExegeteError(f"expected one target or {count} (one an example), got {len(targets)}")
    return [targets[index] for index in indices]


@torch.no_grad()
def measure_pass(model: ExplainedModel, examples: Sequence[Any]) -> float:
    """Return the seconds per example of a forward pass, measured on the first few examples.

    A server's answers are kept, so that only its first one is timed.
    """
    batch = model.encode([examples[index] for index in range(min(TIMED_EXAMPLES, len(examples)))])
    with model.evaluation_mode():
        # The first pass allocates memory and chooses kernels, so the second one is timed.
        if not model.is_remote:
            model(batch)
        begun = time.perf_counter()
        model(batch)
    return (time.perf_counter() - begun) / len(batch)
