"""The positions of responses in a padded batch, and the positions that predict them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models.batch import Batch


class ResponsePositions(NamedTuple):
    """The `positions` [B, R] of the responses' tokens; `real` [B, R] is False after the end of a shorter response."""

    positions: Tensor
    real: Tensor


def find_response_positions(response: Tensor) -> ResponsePositions:
    """Return the positions marked in `response` [B, L]; after a response's end they are 1, a valid index."""
    count = response.sum(1)
    longest = int(count.max())
    real = torch.arange(longest, device=response.device) < count[:, None]
    # A stable sort moves the marked positions to the left without changing their order.
    positions = (~response).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    return ResponsePositions(positions.masked_fill(~real, 1), real)


def find_predicting_columns(response: Tensor) -> Tensor:
    """Return the columns [K] at which any response token of the batch is predicted, ascending."""
    # The logits at a position predict the token after it.
    return response[:, 1:].any(0).nonzero().flatten()


def require_response(batch: Batch) -> Tensor:
    """Return the response's mask [B, L].

    Raises:
        ExegeteError: the batch has no responses.
    """
    if batch.response is None:
        raise _missing_mask_error("generated text", "where the response is", "response=mask")
    return batch.response


def require_decoder_mask(batch: Batch) -> Tensor:
    """Return the mask [B, L] of what the decoder of an encoder-decoder reads.

    Raises:
        ExegeteError: the batch has no responses.
    """
    if batch.decoder_mask is None:
        raise _missing_mask_error(
            "an encoder with a decoder", "what the decoder reads", "response=mask, decoder_mask=mask"
        )
    return batch.decoder_mask


def _missing_mask_error(subject: str, what: str, arguments: str) -> ExegeteError:
    return ExegeteError(
        f"{subject} needs a batch that says {what}: use model.batch(prompt_ids, response_ids), "
        f"or Batch.from_ids(…, {arguments})"
    )
