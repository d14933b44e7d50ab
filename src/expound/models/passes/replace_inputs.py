"""Replacement of a pass's inputs: other embeddings, and ids that show a decoder's head its last token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.batch import Batch, find_last_tokens
from expound.models.layers.origins import mark_input

NO_ID = -1


@contextmanager
def replace_embeddings(layer: nn.Module, embeddings: Tensor) -> Iterator[None]:
    """Let the embedding layer return these embeddings [B, L, d] at its first call inside the block.

    Ids are still passed, so that positions, padding and pooling are the model's own in every family.

    Raises:
        ExpoundError: the layer was not called, so that these embeddings were never read.
    """
    is_replaced = False

    def replace_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        nonlocal is_replaced
        # Later calls keep their output: GPT-2 looks up token types in the same layer.
        if is_replaced:
            return output
        is_replaced = True
        own, length = output.shape[1], embeddings.shape[1]
        # BigBird pads ids to full blocks.
        if own > length:
            return mark_input(torch.cat([embeddings.to(output.dtype), output[:, length:]], 1))
        # An image's patch layer does not return the class token, which stands before the patches.
        given = embeddings[:, length - own :].to(output.dtype)
        # A model may multiply its embeddings in place, which autograd forbids for a leaf.
        return mark_input(given.clone() if given.requires_grad and embeddings.is_leaf else given)

    with layer.register_forward_hook(replace_output):
        yield
    if not is_replaced:
        raise ExpoundError("the model did not read the input embeddings given to it: it looks words up somewhere else")


@contextmanager
def mark_last_token(model: PreTrainedModel, layer: nn.Module, batch: Batch) -> Iterator[Tensor]:
    """Yield ids [B, L] in which a decoder's head finds the last token, even without a padding token.

    transformers' heads read at the last id that is not the padding token, and refuse batches if the model has none.
    Inside the block, ids after the last token are −1, and −1 is the padding token; the embedding layer still reads the
    batch's own ids.
    """
    # Heads of models that also read images ask the configuration of their text part.
    ids, config = batch.inputs["input_ids"], model.config.get_text_config()
    before = config.pad_token_id
    after = torch.arange(batch.length, device=ids.device) > find_last_tokens(batch, before)[:, None]
    is_replaced = False

    def replace_ids(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal is_replaced
        if is_replaced:
            return None
        is_replaced = True
        return ids, *inputs[1:]

    config.pad_token_id = NO_ID
    try:
        with layer.register_forward_pre_hook(replace_ids):
            yield ids.masked_fill(after, NO_ID)
    finally:
        config.pad_token_id = before
