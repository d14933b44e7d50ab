"""The request of a forward pass, which quantities to record, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from expound.errors import ExpoundError


@dataclass(frozen=True, slots=True)
class Capture:
    """The quantities that a forward pass should record, layer by layer.

    Args:
        attentions: attention weights [B, H, L, L] after the softmax and before dropout.
        heads: queries, keys and values [B, H, L, d_h] (after rotary embedding, keys and values repeated under grouped
            queries), and the factor that q·k is multiplied by.
        hidden_states: hidden states [B, L, d], the output of the embeddings first.
        differentiable_twice: use attention that has a second derivative; fused kernels lack it.
        last_only: only the last layer's attentions are needed, so that fused kernels can compute the others.
        heads_only: the pass may end without logits once all `heads` are recorded.
        distribution: the scores of all choices: logits of classes and of a span's ends, of generated text [B, R, V].
        first_derivatives: only first derivatives are needed, so that a fused kernel computes attention in spite of
            `differentiable_twice`.
        first_query: the first position that attends in `attentions`, which are [B, H, L − first_query, L]. All weights
            of a long prompt can exceed the memory.
    """

    attentions: bool = False
    heads: bool = False
    hidden_states: bool = False
    differentiable_twice: bool = False
    last_only: bool = False
    heads_only: bool = False
    distribution: bool = False
    first_derivatives: bool = False
    first_query: int = 0

    def __or__(self, other: Capture) -> Capture:
        """Return a request for everything that at least one of the two asks for."""
        return Capture(
            self.attentions or other.attentions,
            self.heads or other.heads,
            self.hidden_states or other.hidden_states,
            self.differentiable_twice or other.differentiable_twice,
            # A request without attentions says nothing about which layers' attentions are needed.
            all(request.last_only for request in (self, other) if request.attentions),
            self.heads_only and other.heads_only,
            self.distribution or other.distribution,
            self.first_derivatives and other.first_derivatives,
            min((request.first_query for request in (self, other) if request.attentions), default=0),
        )

    @property
    def needs_own_attention(self) -> bool:
        """Whether our attention function has to replace the model's."""
        return self.attentions or self.heads or self.differentiable_twice

    @property
    def allows_fused_kernel(self) -> bool:
        """Whether attention whose weights are not needed can be computed by a kernel without second derivatives."""
        return not self.differentiable_twice or self.first_derivatives


@dataclass(frozen=True)
class Outputs:
    """The outputs of one forward pass; what `Capture` did not ask for is empty.

    Args:
        logits: [B, C] (spans: [B, 2, L]).
        embeddings: the input embeddings [B, L, d] of the pass, if they were passed in.
        attentions: one tensor per layer, as are `queries`, `keys` and `values`.
        blocks: attentions in the order in which they ran, in models with several per layer. Each is between the
            positions of its sides: an encoder's [B, H, S, S], then alternately its decoder's self-attention
            [B, H, T, T] and cross-attention [B, H, T, S].
        scalings: the factor that q·k is multiplied by, per layer.
        masks: the mask [B, 1, L, L] that attention was called with, per layer, True or 0 where a query sees a key; None
            if a layer needs none. Empty for attention that is recorded by hooks.
        hidden_states: the embeddings' output, then one tensor per layer.
        distribution: the scores of all choices, see `Capture`.
    """

    logits: Tensor
    embeddings: Tensor | None = None
    attentions: tuple[Tensor, ...] = ()
    blocks: tuple[Tensor, ...] = ()
    queries: tuple[Tensor, ...] = ()
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    scalings: tuple[float, ...] = ()
    masks: tuple[Tensor | None, ...] = ()
    hidden_states: tuple[Tensor, ...] = ()
    distribution: Tensor | None = None


def name_outputs(output: Any, *, is_span: bool = False) -> Any:
    """Return the output of a Hugging Face model with its logits as attributes: many models return tuples or dicts.

    Raises:
        ExpoundError: a dict without logits, or another value.
    """
    names = ("start_logits", "end_logits") if is_span else ("logits",)
    if all(hasattr(output, name) for name in names):
        return output
    named: dict[str, Any] = {}
    if isinstance(output, Mapping):
        named = dict(output)
    elif isinstance(output, tuple | list | Tensor):
        # The order of transformers' tuples; there is no loss without labels.
        values = [output] if isinstance(output, Tensor) else [value for value in output if value is not None]
        named = dict(zip(names, values, strict=False))
    if not all(isinstance(named.get(name), Tensor) for name in names):
        raise ExpoundError(
            f"expected a forward that returns {' and '.join(names)}, as an output of transformers, in a dict or first "
            f"in a tuple, got {type(output).__name__} {', '.join(map(str, named))}".rstrip()
        )
    return SimpleNamespace(**named)


def require_finite_logits(logits: Tensor) -> Tensor:
    """Return the logits.

    Raises:
        ExpoundError: a logit is NaN or +∞, so that no explanation of the model would mean anything.
    """
    # −∞ is allowed: it masks outputs.
    if (torch.isnan(logits) | torch.isposinf(logits)).any():
        raise ExpoundError("the model predicts NaN: its weights or its floating point type are broken")
    return logits


def to_float32(values: Tensor) -> Tensor:
    """Return floating point values in float32, or unchanged if their type is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
