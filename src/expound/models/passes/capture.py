"""Recording of queries, keys, values, attention weights, and inputs of modules during a forward pass.

Most families call transformers' attention interface, where our function can be named. For those that do not, hooks on
the projections and on the attention dropout record the same quantities.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from expound.errors import ExpoundError
from expound.models.batch import Capture
from expound.models.layers.architecture import find_last_attention
from expound.models.state import PROCESS_LOCK, avoid_cudnn_attention, is_checkpointed

ATTENTION_IMPLEMENTATION = "expound"


@dataclass(frozen=True, slots=True)
class Hooks:
    """The names of the parts of an attention outside of transformers' interface; its weights pass through `dropout`."""

    query: str
    key: str
    value: str
    dropout: str = "dropout"
    heads: str = "num_attention_heads"


# Queries and keys of DeBERTa also have terms of relative positions.
HOOKS = {
    "big_bird": Hooks("query", "key", "value"),
    "deberta-v2": Hooks("query_proj", "key_proj", "value_proj"),
}
"""The attentions that do not go through the interface, by transformers' `model_type`."""


class PassEnded(Exception):  # noqa: N818  # no error: it ends a pass early
    """Raised to stop a forward pass once attention heads are captured."""


@dataclass(slots=True)
class AttentionRecord:
    """The quantities that a forward pass recorded; one entry per layer, in the order in which the layers ran.

    Args:
        capture: what to record.
        last: the number of the attention call, counted from 1, with which the last layer begins.
        zeroed: [B, L] positions whose values are replaced by zero vectors in every attention.
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
    masks: list[Tensor | None] = field(default_factory=list)

    def keep_weights(self, weights: Tensor) -> None:
        """Record a layer's attention weights, of the queries that are asked for."""
        first = self.capture.first_query
        # A slice alone would keep all weights in memory.
        self.attentions.append(weights[:, :, first:].clone() if first else weights)

    def keep_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> None:
        """Record what a layer's attention computes from; raise PassEnded if no later part of the pass is needed."""
        self.queries.append(query)
        self.keys.append(_repeat_heads(key, query))
        self.values.append(_repeat_heads(value, query))
        self.scalings.append(scaling)
        self.masks.append(mask)
        if self.capture.heads_only and self.calls == self.last:
            raise PassEnded

    def by_name(self) -> dict[str, tuple[Any, ...]]:
        """Return the recorded quantities under their names in `Outputs`."""
        return {
            name: tuple(getattr(self, name))
            for name in ("attentions", "queries", "keys", "values", "scalings", "masks")
        }


# A context variable, because threads may run different models at the same time.
_RECORD: ContextVar[AttentionRecord | None] = ContextVar("expound_record", default=None)


@contextmanager
def record_attention(
    model: PreTrainedModel, capture: Capture, zeroed: Tensor | None = None, last: int | None = None
) -> Iterator[AttentionRecord]:
    """Record what attention computes inside the block; afterwards the model uses its own attention again.

    Args:
        model: the Hugging Face model.
        capture: what to record.
        zeroed: [B, L] positions whose value is a zero vector for all that attend to them.
        last: what `find_last_attention` returns, from callers who know it.

    Raises:
        ExpoundError: the family goes neither through the interface nor has a record of hooks, and more than second
            derivatives is asked for; or no attention of the block went through the interface.
    """
    record = AttentionRecord(capture, last or find_last_attention(model), zeroed)
    is_for_derivatives = not (capture.attentions or capture.heads or zeroed is not None)
    hooks = HOOKS.get(model.config.model_type)
    if hooks is not None:
        with _record_by_hooks(model, hooks, record):
            yield record
    elif _uses_interface(model) and not (is_for_derivatives and _has_users_function(model)):
        with _use_own_attention(model, record):
            yield record
        if not record.calls:
            raise _uncapturable_error(model)
    elif not is_for_derivatives:
        raise _uncapturable_error(model)
    else:
        if torch.is_grad_enabled() and model.training and is_checkpointed(model):
            raise ExpoundError(
                "gradient checkpointing would run layers again by another attention kernel: set gradient_checkpointing="
                "False, or load the model with attn_implementation='sdpa'"
            )
        # Only the mathematical kernel has second derivatives. The choice of kernel holds for the whole process.
        with PROCESS_LOCK, sdpa_kernel(SDPBackend.MATH):
            yield record


def _uses_interface(model: nn.Module) -> bool:
    """Return whether a part of the model was written for transformers' attention interface.

    The name of our function also decides how masks are made. Attention that does not ask the interface would add our
    Boolean mask to its logits as numbers, so that padding and later positions were seen.
    """
    return any(hasattr(sys.modules.get(type(part).__module__), "ALL_ATTENTION_FUNCTIONS") for part in model.modules())


def _has_users_function(model: PreTrainedModel) -> bool:
    """Return whether attention is a function that the user has registered, of torch's functions as a rule."""
    function = ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation)
    return function is not None and not function.__module__.startswith("transformers.")


def _uncapturable_error(model: PreTrainedModel) -> ExpoundError:
    return ExpoundError(
        f"the attention of model type {model.config.model_type!r} cannot be captured: it does not go through "
        "transformers' attention interface, and there is no adapter for it"
    )


@contextmanager
def _use_own_attention(model: PreTrainedModel, record: AttentionRecord) -> Iterator[None]:
    # T5 copies its configuration for encoder and decoder, so all distinct configurations are changed.
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}.values()
    before = [config._attn_implementation for config in configs]
    layers = [part for part in model.modules() if getattr(part, "gradient_checkpointing", False)]
    own_functions = [layer._gradient_checkpointing_func for layer in layers]

    def run_checkpointed(layer: Callable[..., Any], *args: Any) -> Any:
        calls, has_run = record.calls, False

        def run(*args: Any) -> Any:
            nonlocal has_run
            if not has_run:
                has_run = True
                return layer(*args)
            # Run again by the backward pass, after this block, a layer must compute the same; its record is dropped.
            again = AttentionRecord(replace(record.capture, heads_only=False), record.last, record.zeroed, calls)
            with _use_own_attention(model, again):
                return layer(*args)

        return checkpoint(run, *args, use_reentrant=False)

    token = _RECORD.set(record)
    for config in configs:
        config._attn_implementation = ATTENTION_IMPLEMENTATION
    for layer in layers:
        layer._gradient_checkpointing_func = run_checkpointed
    try:
        yield
    finally:
        for layer, own_function in zip(layers, own_functions, strict=True):
            layer._gradient_checkpointing_func = own_function
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation = own
        _RECORD.reset(token)


def _attend(
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
    """Compute attention and record it, in a fused kernel unless the weights or second derivatives are needed."""
    record = _RECORD.get()
    if record is None:
        raise RuntimeError("the attention implementation 'expound' only works inside ExplainedModel.forward")
    capture = record.capture
    record.calls += 1
    needs_weights = capture.attentions and (record.calls >= record.last or not capture.last_only)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if record.zeroed is not None:
        value = value.masked_fill(record.zeroed[:, None, :, None], 0)
    if capture.heads:
        record.keep_heads(query, key, value, attention_mask, scaling)
    # The fused kernel knows neither soft-capped logits (Gemma) nor attention sinks (GPT-OSS).
    is_plain = softcap is None and s_aux is None and kwargs.get("sinks") is None
    if is_plain and not needs_weights and capture.allows_fused_kernel:
        kwargs["position_bias"] = position_bias
        with avoid_cudnn_attention(query.device):
            mixed, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
        return mixed, None
    if kwargs.get("sinks") is not None:
        raise ExpoundError(f"{type(module).__name__} attends by 'sinks' too: its weights cannot be captured")
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    fuses = is_plain and position_bias is None and not torch.is_grad_enabled()
    if fuses and needs_weights and capture.first_query:
        record.attentions.append(
            _compute_last_weights(query, key, attention_mask, causal, scaling, capture.first_query)
        )
        with avoid_cudnn_attention(query.device):
            mixed, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
        return mixed, None
    logits = query @ _repeat_heads(key, query).transpose(-1, -2) * scaling
    if position_bias is not None:
        logits = logits + position_bias
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    weights = _compute_weights(logits, attention_mask, causal, s_aux).to(query.dtype)
    if needs_weights:
        record.keep_weights(weights)
    mixed = nn.functional.dropout(weights, dropout, module.training) @ _repeat_heads(value, query)
    return mixed.transpose(1, 2).contiguous(), None


def _compute_last_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scaling: float, first: int
) -> Tensor:
    """Return the weights of the queries from `first` on: those of all queries take memory of L² per head."""
    logits = query[:, :, first:] @ _repeat_heads(key, query).transpose(-1, -2) * scaling
    last = None if mask is None else mask[:, :, first:]
    return _compute_weights(logits, last, causal, None, first).to(query.dtype)


def _repeat_heads(heads: Tensor, query: Tensor) -> Tensor:
    """Repeat the keys or values of grouped-query attention, so that every query head has its own."""
    repeats = query.shape[1] // heads.shape[1]
    return heads if repeats == 1 else heads.repeat_interleave(repeats, dim=1)


def _compute_weights(logits: Tensor, mask: Tensor | None, causal: bool, sinks: Tensor | None, first: int = 0) -> Tensor:
    """Return the softmax of the logits of the queries from `first` on, in float32 at least; masked positions get 0.

    `sinks` [H]: one logit per head that takes a share of the weight without a position of its own.
    """
    # sdpa_mask omits the mask where the kernel's own `is_causal` flag is enough. A single query sees all keys.
    if mask is None and causal and first + logits.shape[2] > 1:
        mask = logits.new_ones(logits.shape[-2:], dtype=torch.bool).tril(first)
    if mask is not None:
        # Not −∞: a row of padding whose keys are all masked would become NaN.
        lowest = torch.finfo(logits.dtype).min
        logits = logits.masked_fill(~mask, lowest) if mask.dtype == torch.bool else logits + mask
    precise = torch.promote_types(logits.dtype, torch.float32)
    if sinks is None:
        return logits.softmax(-1, dtype=precise)
    sink_logits = sinks.view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, sink_logits], -1).softmax(-1, dtype=precise)[..., :-1]


AttentionInterface.register(ATTENTION_IMPLEMENTATION, _attend)
AttentionMaskInterface.register(ATTENTION_IMPLEMENTATION, sdpa_mask)


@contextmanager
def _record_by_hooks(model: PreTrainedModel, names: Hooks, record: AttentionRecord) -> Iterator[None]:
    layers = [module for module in model.modules() if hasattr(module, names.query) and hasattr(module, names.key)]
    needs_weights = record.capture.attentions or record.capture.heads or record.zeroed is not None
    # BigBird's block-sparse attention has the projections, but no dropout that a full matrix passes through.
    if needs_weights and any(not hasattr(layer, names.dropout) for layer in layers):
        raise ExpoundError(
            "BigBird's block-sparse attention has no attention matrix to capture or to take values out of; "
            "load the model with attention_type='original_full' or use shorter texts"
        )
    with ExitStack() as scope:
        for layer in layers:
            _add_hooks(layer, names, record, scope)
        yield


def _add_hooks(layer: nn.Module, names: Hooks, record: AttentionRecord, scope: ExitStack) -> None:
    heads = int(getattr(layer, names.heads))
    query, key, value = (layer.get_submodule(name) for name in (names.query, names.key, names.value))
    if record.zeroed is not None:
        zeroed = record.zeroed[..., None]
        scope.enter_context(value.register_forward_hook(lambda module, inputs, output: output.masked_fill(zeroed, 0)))
    if record.capture.attentions:
        # The input of the dropout is the softmax's output.
        dropout = layer.get_submodule(names.dropout)
        scope.enter_context(dropout.register_forward_pre_hook(lambda _, inputs: record.keep_weights(inputs[0])))
    if record.capture.heads:
        # DeBERTa divides q·k by √(d_h·terms), one term for the content and one per kind of relative position.
        terms = 1 + len({"c2p", "p2c"} & set(getattr(layer, "pos_att_type", ())))
        width = int(query.get_parameter("weight").shape[0]) // heads
        record.scalings.append(float((width * terms) ** -0.5))
        for projection, store in ((query, record.queries), (key, record.keys), (value, record.values)):
            scope.enter_context(projection.register_forward_hook(_keep_first_output(store, heads)))


def _keep_first_output(store: list[Tensor], heads: int) -> Callable[[nn.Module, Any, Tensor], None]:
    """Return a hook that stores a projection's first output, since DeBERTa also projects relative positions by it."""
    seen: list[bool] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if not seen:
            seen.append(True)
            store.append(output.unflatten(-1, (heads, -1)).transpose(1, 2))

    return keep


Change = Callable[[int, Tensor], Tensor]


@contextmanager
def intercept_inputs(modules: Iterable[nn.Module], change: Change | None = None) -> Iterator[list[Tensor]]:
    """Yield a list of the modules' first arguments, in the order of their calls inside the block.

    Args:
        modules: the modules; one that occurs twice is watched once.
        change: a function from the number of the call and the argument to another argument; default: no change.
    """
    inputs: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Families pass hidden states to their layers either by position or by name.
        value = args[0] if args else kwargs["hidden_states"]
        if change is not None:
            value = change(len(inputs), value)
        inputs.append(value)
        if args:
            return ((value, *args[1:]), kwargs)
        return args, kwargs | {"hidden_states": value}

    with ExitStack() as scope:
        for module in dict.fromkeys(modules):
            scope.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        yield inputs
