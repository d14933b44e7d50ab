"""Records queries, keys, values and attention in a forward pass, where transformers dispatches to its kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from exegete.errors import ExegeteError
from exegete.models.families import FAMILIES
from exegete.models.passes.attention_hooks import record_by_hooks
from exegete.models.state.locks import PROCESS_LOCK

ATTENTION_IMPLEMENTATION = "exegete"


@dataclass(frozen=True, slots=True)
class Capture:
    """The quantities that a forward pass should record, layer by layer.

    `attentions` [B, H, L, L] after the softmax and before dropout; `heads`: queries, keys and values [B, H, L, d_h]
    (after rotary embedding, keys and values repeated under grouped queries), and what q·k is multiplied by;
    `hidden_states` [B, L, d], the output of the embeddings first; `differentiable_twice`: use attention with a second
    derivative (fused kernels have none); `last_only`: of the attentions only the last layer's are needed, so that
    fused kernels can do the others; `heads_only`: the pass may end once all `heads` are recorded, without logits;
    `distribution`: the scores of all choices, logits of classes and of a span's ends, of generated text [B, R, V].
    """

    attentions: bool = False
    heads: bool = False
    hidden_states: bool = False
    differentiable_twice: bool = False
    last_only: bool = False
    heads_only: bool = False
    distribution: bool = False

    def __or__(self, other: Capture) -> Capture:
        """Everything that at least one of the two asks for."""
        return Capture(
            self.attentions or other.attentions,
            self.heads or other.heads,
            self.hidden_states or other.hidden_states,
            self.differentiable_twice or other.differentiable_twice,
            all(each.last_only for each in (self, other) if each.attentions),
            self.heads_only and other.heads_only,
            self.distribution or other.distribution,
        )

    @property
    def in_attention(self) -> bool:
        """Whether the attention kernels have to be ours."""
        return self.attentions or self.heads or self.differentiable_twice


class PassEnded(Exception):  # noqa: N818  # no error: what was wanted is there
    """Ends a pass of which only heads are wanted."""


@dataclass(slots=True)
class AttentionRecord:
    """The quantities that a forward pass recorded; one entry a layer, in the order in which the layers ran.

    `last`: the first call of the last layer; `calls`: how many have run; `zeroed` [B, L]: positions whose values are
    zero vectors in every attention that is recorded.
    """

    capture: Capture
    last: int
    zeroed: Tensor | None = None
    calls: int = 0
    attentions: list[Tensor] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    scalings: list[float] = field(default_factory=list)

    def wants_attention(self) -> bool:
        """Whether the layer that runs now shall leave its attention."""
        self.calls += 1
        return self.capture.attentions and (self.calls >= self.last or not self.capture.last_only)

    def layers(self) -> dict[str, tuple[Any, ...]]:
        """The recorded quantities, under the names of `Outputs`."""
        return {name: tuple(getattr(self, name)) for name in ("attentions", "queries", "keys", "values", "scalings")}


_RECORD: ContextVar[AttentionRecord | None] = ContextVar("exegete_record", default=None)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention that records itself; a fused kernel does the work where it can, unless the weights are wanted."""
    record = _RECORD.get()
    if record is None:
        raise RuntimeError("the attention implementation 'exegete' only works inside ExplainedModel.forward")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    wanted = record.wants_attention()
    plain = softcap is None and s_aux is None and kwargs.get("sinks") is None
    fused = plain and not (wanted or record.capture.differentiable_twice)
    if record.zeroed is not None:
        value = value.masked_fill(record.zeroed[:, None, :, None], 0)
    if record.capture.heads:
        record.queries.append(query)
        record.keys.append(_per_query_head(key, query))
        record.values.append(_per_query_head(value, query))
        record.scalings.append(scaling)
        if record.capture.heads_only and record.calls == record.last:
            raise PassEnded
    if fused:
        kwargs["position_bias"] = position_bias
        mixed, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
        return mixed, None
    if kwargs.get("sinks") is not None:
        raise ExegeteError(f"{type(module).__name__} attends by 'sinks' too: its weights cannot be captured")
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    logits = query @ _per_query_head(key, query).transpose(-1, -2) * scaling
    if position_bias is not None:
        logits = logits + position_bias
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    weights = _weights(logits, attention_mask, causal, s_aux).to(query.dtype)
    if wanted:
        record.attentions.append(weights)
    mixed = nn.functional.dropout(weights, dropout, module.training) @ _per_query_head(value, query)
    return mixed.transpose(1, 2).contiguous(), None


def _per_query_head(heads: Tensor, query: Tensor) -> Tensor:
    repeats = query.shape[1] // heads.shape[1]
    return heads if repeats == 1 else heads.repeat_interleave(repeats, dim=1)


def _weights(logits: Tensor, mask: Tensor | None, causal: bool, sinks: Tensor | None) -> Tensor:
    """softmax(logits), in float32 at least; positions that may not be attended get exactly no weight.

    `sinks` [H]: a logit for each head that takes its share of the weight and leads nowhere.
    """
    if mask is None and causal and logits.shape[2] > 1:
        mask = logits.new_ones(logits.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        lowest = torch.finfo(logits.dtype).min
        logits = logits.masked_fill(~mask, lowest) if mask.dtype == torch.bool else logits + mask
    precise = torch.promote_types(logits.dtype, torch.float32)
    if sinks is None:
        return logits.softmax(-1, dtype=precise)
    nowhere = sinks.view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, nowhere], -1).softmax(-1, dtype=precise)[..., :-1]


AttentionInterface.register(ATTENTION_IMPLEMENTATION, _attention)
AttentionMaskInterface.register(ATTENTION_IMPLEMENTATION, sdpa_mask)


@contextmanager
def record_attention(
    model: PreTrainedModel, capture: Capture, zeroed: Tensor | None = None
) -> Iterator[AttentionRecord]:
    """Record what attention does in the forward passes inside the block; the model's own kernels come back after it.

    `zeroed` [B, L]: positions that contribute a zero vector where they are attended to.

    Raises:
        ExegeteError: attention that goes neither through the interface nor through an adapter, of which more is wanted
            than second derivatives; a block in which nothing came through the interface.
    """
    record = AttentionRecord(capture, getattr(model, "last_attention", model.config.num_hidden_layers), zeroed)
    family = model.config.model_type
    known = FAMILIES.get(family)
    if known is not None and known.attention.hooks is not None:
        with record_by_hooks(model, known.attention.hooks, record):
            yield record
        return
    if not _dispatches(model):
        if capture.attentions or capture.heads or zeroed is not None:
            raise _uncapturable(family)
        with PROCESS_LOCK, sdpa_kernel(SDPBackend.MATH):
            yield record
        return
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}.values()
    before = [config._attn_implementation for config in configs]  # T5 has copies for encoder and decoder
    token = _RECORD.set(record)
    for config in configs:
        config._attn_implementation = ATTENTION_IMPLEMENTATION
    try:
        yield record
    finally:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation = own
        _RECORD.reset(token)
    if not record.calls:
        raise _uncapturable(family)


def _dispatches(model: nn.Module) -> bool:
    """Whether a part of the model was written for transformers' attention interface.

    Our kernel's name also decides how masks are made: attention that does not ask the interface would add them as
    numbers, so that padding and later positions were seen.
    """
    return any(hasattr(sys.modules.get(type(part).__module__), "ALL_ATTENTION_FUNCTIONS") for part in model.modules())


def _uncapturable(family: str) -> ExegeteError:
    return ExegeteError(
        f"the attention of model type {family!r} cannot be captured: it does not go through transformers' "
        "attention interface, and there is no adapter for it"
    )
