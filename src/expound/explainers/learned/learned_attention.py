"""Shared parts of explainers with coefficients on attention: mean queries, normalizers and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from entmax import entmax15, sparsemax
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.learned.base import LearnedExplainer
from expound.explainers.learned.sparsemax import short_sparsemax, short_sparsemaxes
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.batch import to_float32

Norm = Literal["sparsemax", "softmax", "entmax15"]
NORMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sparsemax": sparsemax,
    "softmax": torch.softmax,
    "entmax15": entmax15,
}
FAST_NORMS = NORMS | {"sparsemax": short_sparsemax}
# Finite: sparsemax takes cumulative sums of the sorted values, which −∞ would turn into NaN.
MASKED = -1e9


class LearnedAttention(LearnedExplainer):
    """An explainer whose parameters weight the parts of a model's attention.

    It explains every model with `n_layers` layers of `n_heads` heads, also with fused attention: queries are averaged
    before they are multiplied with the keys, so that no product of L × L is needed. With local attention the mean is
    over the queries whose window reaches the key. For DeBERTa only the content-to-content term counts.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__()
        if min(n_layers, n_heads) < 1:
            raise ExpoundError(f"expected at least 1 layer and 1 head, got {n_layers} layers of {n_heads} heads")
        self.n_layers, self.n_heads = n_layers, n_heads

    @property
    def capture(self) -> Capture:
        """The queries and keys of every layer."""
        return Capture(heads=True)

    def check(self, layers: Sequence[Tensor]) -> None:
        """Raise ExpoundError unless these parts of each layer's heads, [B, H, …], match the coefficients."""
        shapes = [tuple(layer.shape[1:2]) for layer in layers]
        if shapes != [(self.n_heads,)] * self.n_layers:
            heads = "/".join(sorted({str(count) for (count,) in shapes}))
            raise ExpoundError(
                f"this {self.name} is for {self.n_layers} layers of {self.n_heads} heads, the model has "
                f"{len(shapes)} layers of {heads or 'no'} heads: use one made for this model"
            )


def explained_positions(batch: Batch, special_tokens: bool) -> Tensor:
    """Return which positions [B, L] get a score: all real ones, or only content."""
    if special_tokens:
        return batch.attended
    # A softmax over no position is NaN: a text without content uses all its positions.
    return torch.where(batch.content.any(1, keepdim=True), batch.content, batch.attended)


class Queries(NamedTuple):
    """The range of queries, from `first` to before `end`, both [B, L], that see each key."""

    first: Tensor
    end: Tensor

    def sum(self, values: Tensor) -> Tensor:
        """Return the sums [B, L, …] of values [B, L, …] over each key's range."""
        # Differences of cumulative sums take O(L) instead of O(L²).
        sums = torch.cat([torch.zeros_like(values[:, :1]), values.cumsum(1)], 1)
        shape = values.shape[2:]
        first, end = (each[(..., *[None] * len(shape))].expand(-1, -1, *shape) for each in (self.first, self.end))
        return sums.gather(1, end) - sums.gather(1, first)


def find_queries(mask: Tensor, attended: Tensor, causal: bool) -> Queries | None:
    """Return the queries that see each key by a mask of attention; None if all do, or all from the key on (causal).

    Raises:
        ExpoundError: the real queries that see some key are not contiguous.
    """
    if mask.dtype != torch.bool:
        mask = mask > torch.finfo(mask.dtype).min / 2
    seen = mask.any(1) & attended[:, :, None] & attended[:, None]
    everywhere = attended[:, :, None] & attended[:, None]
    if torch.equal(seen, everywhere.tril() if causal else everywhere):
        return None
    length = seen.shape[1]
    found = Queries(seen.int().argmax(1), length - seen.flip(1).int().argmax(1))
    count = seen.sum(1)
    if ((count > 0) & (found.sum(attended.long()) != count)).any():
        raise ExpoundError(
            "the positions that attend to some position have gaps between them: no mean over them is taken"
        )
    return found


def find_queries_of_layers(outputs: Outputs, attended: Tensor, causal: bool) -> Iterator[Queries | None]:
    """Yield `find_queries` of each layer."""
    # Layers share their masks: each is read once.
    known: dict[int, Queries | None] = {}
    for mask in outputs.masks or [None] * len(outputs.queries):
        if mask is not None and id(mask) not in known:
            known[id(mask)] = find_queries(mask, attended, causal)
        yield None if mask is None else known[id(mask)]


def mean_logits(
    queries: Tensor,
    keys: Tensor,
    attended: Tensor,
    causal: bool,
    visible: Queries | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return mean_n ⟨q_n, k_m⟩ over the positions n that can see m: [B, H, L], arbitrary at padding.

    By linearity this is ⟨mean_n q_n, k_m⟩, which takes O(L · d) instead of O(L² · d).

    Args:
        queries: [B, H, L, d].
        keys: [B, H, L, d].
        attended: [B, L], which positions are real; padding is not averaged over.
        causal: whether only positions n ≥ m can see m.
        visible: the queries that see each key, if attention is local.
        weights: [H, d], factors of the features in the products; default: 1.
    """
    # [B, L, H, d] is the order in memory of most models: transposing back makes the reductions contiguous.
    queries, keys = to_float32(queries).transpose(1, 2), to_float32(keys).transpose(1, 2)
    count = attended[:, :, None, None].to(queries.dtype)
    total = queries * count
    if visible is not None:
        mean = visible.sum(total) / visible.sum(count).clamp(min=1)
    elif causal:
        mean = _reverse_cumsum(total) / _reverse_cumsum(count).clamp(min=1)
    else:
        mean = total.sum(1, keepdim=True) / count.sum(1, keepdim=True)
    if weights is not None:
        mean = mean * weights.to(mean)
    return sum_last_axis(mean * keys).transpose(1, 2)


def sum_last_axis(values: Tensor) -> Tensor:
    """Return sums over the last axis in full precision, also under autocast."""
    with disable_autocast(values.device):
        # A product with ones is about ten times as fast as `sum` over a short axis.
        return values @ values.new_ones(values.shape[-1])


def disable_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which products keep their precision under autocast."""
    return torch.autocast(device.type, enabled=False)


def normalize_jointly(normalizer: str, grid: Tensor, places: Tensor) -> Tensor:
    """Normalize a grid [B, …, K, L] over K and the `places` [B, L] together; return the sum over K, 0 elsewhere."""
    masked = _mask_grid(grid, places).flatten(-2)
    return FAST_NORMS[normalizer](masked, -1).view_as(grid).sum(-2)


def normalize_rows(normalizer: str, grid: Tensor, places: Tensor) -> Tensor:
    """Normalize each row of a grid [B, …, K, L] over the `places` [B, L]; return the mean over K, 0 elsewhere."""
    return FAST_NORMS[normalizer](_mask_grid(grid, places), -1).mean(-2)


def _mask_grid(grid: Tensor, places: Tensor) -> Tensor:
    inside = places.view(len(places), *[1] * (grid.ndim - 2), places.shape[1])
    return grid.masked_fill(~inside, MASKED)


def normalize_each(normalizer: str, values: Sequence[Tensor]) -> Sequence[Tensor]:
    """Apply a normalizer over the last axis of several tensors, whose last axes have one length."""
    if normalizer == "sparsemax":
        return short_sparsemaxes(values)
    return [NORMS[normalizer](tensor, -1) for tensor in values]


def softmax_over(logits: Tensor, places: Tensor) -> Tensor:
    """Return the softmax over `places` [B, L], 0 elsewhere: [B, L]."""
    return logits.masked_fill(~places, MASKED).softmax(-1)


def mean_head_logits(model: ExplainedModel, batch: Batch, outputs: Outputs) -> Tensor:
    """Return each head's mean attention logits before the softmax, scaled as in the model: [B, N, H, L]."""
    attended, causal = batch.attended, model.is_decoder
    visible = find_queries_of_layers(outputs, attended, causal)
    layers = zip(outputs.queries, outputs.keys, outputs.scalings, visible, strict=True)
    return torch.stack([scale * mean_logits(q, k, attended, causal, seen) for q, k, scale, seen in layers], 1)


def _reverse_cumsum(values: Tensor) -> Tensor:
    return values.flip(1).cumsum(1).flip(1)
