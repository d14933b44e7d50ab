"""From a dataset in canonical form to training batches: tokenized responses, encoding, and the order of examples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from datasets import Dataset, List, Value
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from expound.errors import ExpoundError
from expound.models import ExplainedModel
from expound.objectives import StepContext


class OrderedSampler(Sampler[int]):
    """Samples examples in the order that `order` returns when an epoch begins."""

    def __init__(self, size: int, order: Callable[[], Sequence[int]]) -> None:
        self.size, self.order = size, order

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


def text_lengths(dataset: Dataset) -> list[int]:
    """Return the number of characters of each example; 0 for images."""
    if is_generation_data(dataset):
        return [len(str(example)) for example in dataset]
    columns = [dataset[name][:] for name in ("text", "text_pair") if name in dataset.column_names]
    if not columns:
        return [0] * len(dataset)
    return [sum(map(len, texts)) for texts in zip(*columns, strict=True)]


def sample_evenly(data: Dataset, count: int) -> Dataset:
    """Return at most `count` examples, at equal distances in the data's order."""
    size = len(data)
    if size <= count:
        return data
    return data.select([index * size // count for index in range(count)])


def shuffle_by_length(sizes: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[int]:
    """Return the order of examples in an epoch: shuffled, with neighbors of similar length."""
    # The order depends on (seed, epoch) alone, not on a generator's state, so that a resumed run sees the same batches.
    generator = StepContext(seed, epoch).generator("order")
    order: list[int] = get_length_grouped_indices(list(sizes), batch_size, generator=generator)
    return order


def sort_longest_first(sizes: Sequence[int]) -> list[int]:
    """Return the indices of examples from the longest to the shortest."""
    # The first batch then needs the most memory: a run that does not fit fails at once. A stable sort keeps the order
    # the same on every machine.
    order: list[int] = np.argsort(-np.asarray(sizes), kind="stable").tolist()
    return order


def is_generation_data(data: Dataset) -> bool:
    """Return whether the examples are prompts or chats with responses."""
    return "response" in data.column_names and bool({"prompt", "messages"} & set(data.column_names))


def tokenize_responses(model: ExplainedModel, data: Dataset) -> Dataset:
    """Return generation data with each response as token ids that end with the model's end-of-text token.

    Other data is returned unchanged. A model without an end-of-text token gets responses without one.

    Raises:
        ExpoundError: an example has no response.
    """
    if not is_generation_data(data):
        return data
    generation = getattr(model.model, "generation_config", None)
    end_ids = getattr(generation, "eos_token_id", None)
    # Chat models list several tokens that end a text: one is enough.
    if isinstance(end_ids, list):
        end_ids = end_ids[0]
    end = [] if end_ids is None else [int(end_ids)]
    responses = []
    for number, example in enumerate(data):
        if example["response"] is None:
            raise ExpoundError(f"row {number} has no response: leave such rows out of training")
        # Ids are taken from the whole exchange, since a response's first token may depend on what is before it.
        (exchange,) = model.encode([example], device="cpu").exchanges or ()
        ids = model.tokenizer.convert_tokens_to_ids(list(exchange.tokens))
        if ids[-1:] != end:
            ids += end
        responses.append(ids)
    return data.remove_columns("response").add_column("response", responses, feature=List(Value("int64")))


@contextmanager
def log_once(name: str) -> Iterator[None]:
    """Let a logger emit each kind of message once inside the block."""
    seen: set[str] = set()

    # `record.msg` is the format string: messages that differ only in their numbers count as one kind.
    def is_new(record: logging.LogRecord) -> bool:
        new = str(record.msg) not in seen
        seen.add(str(record.msg))
        return new

    logger = logging.getLogger(name)
    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)
