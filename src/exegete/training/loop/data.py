"""From a dataset in canonical form to batches: encoding, and an order in which batches are of even length."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from datasets import Dataset, List, Value
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from exegete.errors import ExegeteError
from exegete.models import Batch, ExplainedModel
from exegete.objectives import StepContext


class Collator:
    """Rows become {"batch": a `Batch` in main memory}, encoded the way the model encodes everything."""

    def __init__(self, model: ExplainedModel) -> None:
        self.model = model

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Batch]:
        """The rows as a batch on the CPU for the Trainer; loader processes must not touch an accelerator."""
        return {"batch": self.model.encode(rows, device="cpu")}


class OrderedSampler(Sampler[int]):
    """Rows in the order that `order` gives when a pass over the data begins."""

    def __init__(self, size: int, order: Callable[[], Sequence[int]]) -> None:
        self.size, self.order = size, order

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


def text_lengths(dataset: Dataset) -> list[int]:
    """Characters of each row's texts, of a row of generated text all of them; 0 for images."""
    if is_generation_data(dataset):
        return [len(str(row)) for row in dataset]
    columns = [dataset[name][:] for name in ("text", "text_pair") if name in dataset.column_names]
    return [sum(map(len, texts)) for texts in zip(*columns, strict=True)] if columns else [0] * len(dataset)


def shuffle_by_length(sizes: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[int]:
    """Rows of an epoch: shuffled, yet neighbours are of like length. Depends on (seed, epoch) alone."""
    generator = StepContext(seed, epoch).generator("order")
    order: list[int] = get_length_grouped_indices(list(sizes), batch_size, generator=generator)
    return order


def sort_longest_first(sizes: Sequence[int]) -> list[int]:
    """Rows from the longest to the shortest."""
    order: list[int] = np.argsort(-np.asarray(sizes), kind="stable").tolist()
    return order


@contextmanager
def log_once(name: str) -> Iterator[None]:
    """Inside the block a logger says each kind of message once, however many batches there are."""
    said: set[str] = set()

    def first(record: logging.LogRecord) -> bool:
        new = str(record.msg) not in said
        said.add(str(record.msg))
        return new

    logger = logging.getLogger(name)
    logger.addFilter(first)
    try:
        yield
    finally:
        logger.removeFilter(first)


def is_generation_data(data: Dataset) -> bool:
    """Whether rows are about generated text."""
    return "response" in data.column_names and bool({"prompt", "messages"} & set(data.column_names))


def tokenize_responses(model: ExplainedModel, data: Dataset) -> Dataset:
    """The rows with responses as ids, each up to the token by which the model ends a text, where it has one.

    Raises:
        ExegeteError: a row without a response.
    """
    if not is_generation_data(data):
        return data
    generation = getattr(model.model, "generation_config", None)
    ends = getattr(generation, "eos_token_id", None)
    end = [ends[0]] if isinstance(ends, list) else [] if ends is None else [int(ends)]
    found = []
    for number, row in enumerate(data):
        if row["response"] is None:
            raise ExegeteError(f"row {number} has no response: leave such rows out of training")
        (exchange,) = model.encode([row], device="cpu").exchanges or ()
        ids = model.tokenizer.convert_tokens_to_ids(list(exchange.tokens))
        found.append(ids if ids[-1:] == end else ids + end)
    return data.remove_columns("response").add_column("response", found, feature=List(Value("int64")))
