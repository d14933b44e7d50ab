"""The shared parts of explainers with coefficients on attention: mean queries, normalisers and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from entmax import entmax15, sparsemax
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.explainers.learned.base import LearnedExplainer
from exegete.explainers.learned.sparsemax import short_sparsemax, short_sparsemaxes
from exegete.models import Batch, Capture, ExplainedModel, Outputs

Norm = Literal["sparsemax", "softmax", "entmax15"]
NORMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sparsemax": sparsemax,
    "softmax": torch.softmax,
    "entmax15": entmax15,
}
FAST_NORMS = NORMS | {"sparsemax": short_sparsemax}
MASKED = -1e9  # finite: sparsemax adds sorted values up


class LearnedAttention(LearnedExplainer):
    """An explainer whose parameters weigh the parts of a model's attention.

    It explains every model with `n_layers` layers of `n_heads` heads, under fused attention too: queries are averaged
    before they meet the keys, so no L×L matrix is made. Masks of local attention are not looked at: a query is
    averaged over also where a window hides the key from it. Of DeBERTa only content meets content.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__()
        if min(n_layers, n_heads) < 1:
            raise ExegeteError(f"expected at least 1 layer and 1 head, got {n_layers} layers of {n_heads} heads")
        self.n_layers, self.n_heads = n_layers, n_heads

    @property
    def capture(self) -> Capture:
        """Queries and keys of every layer."""
        return Capture(heads=True)

    def check(self, outputs: Outputs) -> None:
        """Raises ExegeteError unless the captured layers and heads are those that the coefficients are for."""
        found = [tuple(layer.shape[1:2]) for layer in outputs.queries]
        if found != [(self.n_heads,)] * self.n_layers:
            heads = "/".join(sorted({str(count) for (count,) in found}))
            raise ExegeteError(
                f"this {self.name} is for {self.n_layers} layers of {self.n_heads} heads, the model has "
                f"{len(found)} layers of {heads or 'no'} heads: use one made for this model"
            )


def explained_positions(batch: Batch, special_tokens: bool) -> Tensor:
    """[B, L] bool: what has a part in an explanation, real positions or content; a text without content has it all."""
    if special_tokens:
        return batch.attended
    return torch.where(batch.content.any(1, keepdim=True), batch.content, batch.attended)


def mean_logits(queries: Tensor, keys: Tensor, attended: Tensor, causal: bool, weights: Tensor | None = None) -> Tensor:
    """mean_n ⟨q_n, k_m⟩ over the positions n that can see m, in O(L·d): [B, H, L], anything at padding.

    Args:
        queries: [B, H, L, d].
        keys: [B, H, L, d].
        attended: [B, L], which positions are real; padding, finite numbers, is averaged over by nobody.
        causal: whether only n ≥ m can see m; all can otherwise.
        weights: [H, d], of the features in the products; 1 by default.
    """
    queries, keys = (promote_to_float32(x).transpose(1, 2) for x in (queries, keys))  # most models' own order in memory
    count = attended[:, :, None, None].to(queries.dtype)
    total = queries * count
    if causal:
        mean = _reverse_cumsum(total) / _reverse_cumsum(count).clamp(min=1)
    else:
        mean = total.sum(1, keepdim=True) / count.sum(1, keepdim=True)
    if weights is not None:
        mean = mean * weights.to(mean)
    return sum_last_axis(mean * keys).transpose(1, 2)


def sum_last_axis(values: Tensor) -> Tensor:
    """Over the last axis, whatever autocast says; a product with ones is some ten times as fast where it is short."""
    with disable_autocast(values.device):
        return values @ values.new_ones(values.shape[-1])


def disable_autocast(device: torch.device) -> torch.autocast:
    """Inside the block products keep their precision under autocast, too."""
    return torch.autocast(device.type, enabled=False)


def promote_to_float32(values: Tensor) -> Tensor:
    """The values converted to float32; wider types stay."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def normalise_jointly(normaliser: str, grid: Tensor, places: Tensor) -> Tensor:
    """One normaliser over all `places` [B, L] of a grid [B, …, K, L] together; the sum over K, zero elsewhere."""
    inside = places.view(len(places), *[1] * (grid.ndim - 2), places.shape[1])
    masked = grid.masked_fill(~inside, MASKED).flatten(-2)
    return FAST_NORMS[normaliser](masked, -1).view_as(grid).sum(-2)


def normalise_each(normaliser: str, values: Sequence[Tensor]) -> Sequence[Tensor]:
    """A normaliser over the last axis, of one length, of several tensors."""
    return short_sparsemaxes(values) if normaliser == "sparsemax" else [NORMS[normaliser](each, -1) for each in values]


def softmax_over(logits: Tensor, places: Tensor) -> Tensor:
    """The softmax over `places` [B, L]: [B, L], zero elsewhere."""
    return logits.masked_fill(~places, MASKED).softmax(-1)


def mean_head_logits(model: ExplainedModel, batch: Batch, outputs: Outputs) -> Tensor:
    """Every head's attention logits before the softmax, as `mean_logits`, scaled as the model does: [B, N, H, L]."""
    layers = zip(outputs.queries, outputs.keys, outputs.scalings, strict=True)
    causal = model.is_decoder
    return torch.stack([scale * mean_logits(q, k, batch.attended, causal) for q, k, scale in layers], 1)


def _reverse_cumsum(values: Tensor) -> Tensor:
    return values.flip(1).cumsum(1).flip(1)
