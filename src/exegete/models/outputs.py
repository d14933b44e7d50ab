"""The outputs of a forward pass, and a check of logits for NaN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exegete.errors import ExegeteError


@dataclass(frozen=True)
class Outputs:
    """The outputs of one forward pass.

    `logits` [B, C] (spans: [B, 2, L]); `embeddings` [B, L, d]: the input embeddings it ran on, when they were given;
    the rest as asked for with `Capture`, one tensor a layer (`hidden_states`: one more, the embeddings' output first;
    `scalings`: the number that q·k is multiplied by). `blocks`: attentions in the order in which they ran, where a
    layer has several, each between the positions of its sides: an encoder's [B, H, S, S], then its decoder's own
    [B, H, T, T] and its cross-attention [B, H, T, S] in turn. `distribution`: the scores
    of all choices, see `Capture`.
    """

    logits: Tensor
    embeddings: Tensor | None = None
    attentions: tuple[Tensor, ...] = ()
    blocks: tuple[Tensor, ...] = ()
    queries: tuple[Tensor, ...] = ()
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    scalings: tuple[float, ...] = ()
    hidden_states: tuple[Tensor, ...] = ()
    distribution: Tensor | None = None


def require_finite_logits(logits: Tensor) -> Tensor:
    """The logits, unless one is NaN or +∞: then the model is broken, and no explanation of it means anything."""
    if (torch.isnan(logits) | torch.isposinf(logits)).any():
        raise ExegeteError("the model answers NaN: its weights or its floating point type are broken")
    return logits
