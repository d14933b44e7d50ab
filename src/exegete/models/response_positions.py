"""Where in a padded batch the tokens of a response stand, and which positions predict them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models.batch import Batch


class ResponsePositions(NamedTuple):
    """`positions` [B, R] of the responses' tokens, R the longest; `real` [B, R]: False where a response has ended."""

    positions: Tensor
    real: Tensor


def find_response_positions(response: Tensor) -> ResponsePositions:
    """The places of the positions marked in `response` [B, L]; positions beyond a response's end are 1."""
    count = response.sum(1)
    longest = int(count.max())
    real = torch.arange(longest, device=response.device) < count[:, None]
    positions = (~response).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    return ResponsePositions(positions.masked_fill(~real, 1), real)


def find_predicting_columns(response: Tensor) -> Tensor:
    """[K] Columns at which any response token of the batch is predicted: those before the tokens, ascending."""
    return response[:, 1:].any(0).nonzero().flatten()


def require_response(batch: Batch) -> Tensor:
    """Where the response is, [B, L].

    Raises:
        ExegeteError: a batch that does not say it.
    """
    return _told(batch.response, "generated text", "where the response is", "response=mask")


def require_decoder_mask(batch: Batch) -> Tensor:
    """Positions that the decoder behind an encoder reads, [B, L]; raises as `require_response`."""
    return _told(
        batch.decoder_mask, "an encoder with a decoder", "what the decoder reads", "response=mask, decoded=mask"
    )


def _told(mark: Tensor | None, whose: str, what: str, given: str) -> Tensor:
    if mark is None:
        raise ExegeteError(
            f"{whose} needs a batch that says {what}: use model.batch(prompt_ids, response_ids), "
            f"or Batch.from_ids(…, {given})"
        )
    return mark
