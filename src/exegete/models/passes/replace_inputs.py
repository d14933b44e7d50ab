"""Replaces inputs of a pass: other embeddings, and ids that tell a decoder where it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.batch import Batch

NO_ID = -1


@contextmanager
def replace_embeddings(layer: nn.Module, embeddings: Tensor) -> Iterator[None]:
    """The embedding layer's first answer is these [B, L, d]; later ones (GPT-2 looks token types up too) stay.

    What the model pads of its own accord stays its own (BigBird, to full blocks); a class token and what else stands
    before an image's patches is left out.

    Raises:
        ExegeteError: the layer was not called, so that these embeddings were never read.
    """
    asked: list[None] = []

    def answer(output: Tensor) -> Tensor:
        asked.append(None)
        own, given = output.shape[1], embeddings.shape[1]
        if own > given:
            return torch.cat([embeddings.to(output.dtype), output[:, given:]], 1)
        return embeddings[:, given - own :].to(output.dtype)

    first = _first_only(answer)
    with layer.register_forward_hook(lambda _, inputs, output: first(output)):
        yield
    if not asked:
        raise ExegeteError("the model did not read the input embeddings given to it: it looks words up somewhere else")


def find_last_tokens(batch: Batch, pad_id: int | None) -> Tensor:
    """[B] Where a decoder's head reads: the last real position that is not the padding token (the first if all are)."""
    real = batch.attended
    telling = real if pad_id is None else real & (batch.inputs["input_ids"] != pad_id)
    last = batch.length - 1 - telling.long().flip(1).argmax(1)
    return torch.where(telling.any(1), last, real.long().argmax(1))


@contextmanager
def mark_last_token(model: PreTrainedModel, layer: nn.Module, batch: Batch) -> Iterator[Tensor]:
    """Ids [B, L] with which a decoder's head finds the last token, whether or not an id stands for padding.

    The head looks for the last id that is not padding: ids after the last token become −1, and that is the padding id
    inside the block. The embedding layer still gets the batch's own ids.
    """
    ids, config = batch.inputs["input_ids"], model.config
    before = config.pad_token_id
    after = torch.arange(batch.length, device=ids.device) > find_last_tokens(batch, before)[:, None]
    first = _first_only(lambda _: ids)
    config.pad_token_id = NO_ID
    try:
        with layer.register_forward_pre_hook(lambda _, inputs: (first(inputs[0]), *inputs[1:])):
            yield ids.masked_fill(after, NO_ID)
    finally:
        config.pad_token_id = before


def _first_only(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`change` at the first call, nothing at those after it."""
    calls: list[None] = []

    def once(value: Any) -> Any:
        calls.append(None)
        return change(value) if len(calls) == 1 else value

    return once
