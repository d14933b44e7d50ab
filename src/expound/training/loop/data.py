"""From a dataset in canonical form to training batches: tokenized responses, encoding, and the order of examples."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset, List, Value
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel
from expound.objectives import StepContext


class Collator:
    """Encodes examples as {"batch": a `Batch` in main memory}, in the way the model encodes all its inputs."""

    def __init__(self, model: ExplainedModel) -> None:
        self.model = model

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Batch]:
        """Return the examples as a batch on the CPU."""
        # The Trainer moves batches to the device: loader processes must not touch an accelerator.
        return {"batch": self.model.encode(examples, device="cpu")}


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


def sample_share(batch: Batch, share: float, context: StepContext) -> Batch:
    """Return ⌈share · B⌉ examples of a batch in its order, in training random ones, without padding common to all."""
    if not 0 < share <= 1:
        raise ExpoundError(f"expected a share of the batch above 0 and up to 1, got {share}")
    # Rounding first: 0.07 · 100 = 7.000000000000001 would give eight examples.
    size = math.ceil(round(share * len(batch), 9))
    if context.training:
        order = torch.randperm(len(batch), generator=context.generator("share of the batch"))
    else:
        # Evaluations are compared with each other: always the same examples, of all lengths.
        order = torch.arange(size) * len(batch) // size
    return batch.select(order[:size].sort().values).trim_padding()[0]


def mask_random_tokens(model: ExplainedModel, batch: Batch, share: float, context: StepContext) -> Batch:
    """Return the batch with random tokens masked in a random `share` of its examples (Madsen et al. 2024, §3).

    Masked fine-tuning teaches a model to read inputs from which words were removed, as faithfulness metrics ask it to.
    """
    if model.modality != "text":
        raise ExpoundError("masked fine-tuning replaces words: it does not apply to images")
    generator = context.generator("masked fine-tuning", batch.device)
    # Each masked example has a masking rate of its own, uniform in [0, 1], so that the model sees all rates.
    selection, rate = torch.rand(2, len(batch), 1, generator=generator, device=batch.device)
    draws = torch.rand(batch.content.shape, generator=generator, device=batch.device)
    is_masked = batch.content & (draws < rate) & (selection < share)
    input_ids = batch.inputs["input_ids"].masked_fill(is_masked, model.mask_id)
    return replace(batch, inputs=batch.inputs | {"input_ids": input_ids})


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
