"""Changes that people make to a classifier of transformers: heads, outputs, attention and modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.modeling_utils import AttentionInterface

FAMILIES = (
    *("bert", "roberta", "distilbert", "electra", "deberta-v2", "albert", "modernbert", "xlm-roberta", "gpt2", "llama"),
)
OWN_ATTENTION = "sharper"
Head = Callable[[Any, Tensor, Tensor], Tensor]
"""A function of the model, its last hidden states [B, L, d] and what is real [B, L, 1], to logits."""


def pick_last(model: Any, states: Tensor, real: Tensor) -> Tensor:
    positions = torch.arange(states.shape[1]) * real[:, :, 0]
    return states[torch.arange(len(states)), positions.argmax(1)]


HEADS: dict[str, Head] = {
    "mean": lambda model, states, real: model.own((states * real).sum(1) / real.sum(1)),
    "max": lambda model, states, real: model.own(states.masked_fill(real == 0, -1e4).amax(1)),
    "attention pooling": lambda model, states, real: model.own(
        (model.scorer(states).masked_fill(real == 0, -1e4).softmax(1) * states).sum(1)
    ),
    "last token": lambda model, states, real: model.own(pick_last(model, states, real)),
    "two layers": lambda model, states, real: model.own(torch.tanh(model.scale(pick_last(model, states, real)))),
    "shared head": lambda model, states, real: (
        model.own(pick_last(model, states, real)) + model.own((states * real).sum(1) / real.sum(1))
    ),
    "extra norm": lambda model, states, real: model.own(model.norm(pick_last(model, states, real))),
}
BEFORE = {"two layers": ("scale", "tanh"), "extra norm": ("norm",)}
"""The parts of a head before its projection."""


def give_head(raw: Any, name: Any) -> tuple[Any, Any]:
    """A subclass whose forward reads the last hidden states in its own way, by the name of a head or a function."""

    def forward(
        self: Any, input_ids: Any = None, attention_mask: Any = None, inputs_embeds: Any = None, **kwargs: Any
    ) -> Any:
        options = {key: kwargs[key] for key in ("output_attentions", "output_hidden_states") if key in kwargs}
        output = self.base_model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **options
        )
        real = attention_mask[..., None].to(output.last_hidden_state)
        logits = HEADS.get(name, name)(self, output.last_hidden_state, real)
        attentions = getattr(output, "attentions", None)
        return SequenceClassifierOutput(logits=logits, hidden_states=output.hidden_states, attentions=attentions)

    size = raw.get_input_embeddings().weight.shape[1] if raw.config.model_type != "electra" else raw.config.hidden_size
    torch.manual_seed(3)
    raw.own, raw.scorer, raw.scale = nn.Linear(size, 3), nn.Linear(size, 1), nn.Linear(size, size)
    raw.norm = nn.LayerNorm(size)
    raw.to(raw.dtype)
    raw.own_head = (*BEFORE.get(name, ()), "own")
    raw.__class__ = type("OwnClassifier", (type(raw),), {"forward": forward})
    return raw, raw


def wrap_output(raw: Any, wrap: Callable[[Tensor], Any]) -> tuple[Any, Any]:
    """A subclass whose forward returns another kind of output, and the model without it."""
    plain = deepcopy(raw)

    def forward(
        self: Any, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        # Not all families take position ids.
        more = {} if position_ids is None else {"position_ids": position_ids}
        return wrap(parent.forward(self, input_ids=input_ids, attention_mask=attention_mask, **more).logits)

    parent = type(raw)
    raw.__class__ = type("OwnClassifier", (parent,), {"forward": forward})
    return raw, plain


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: Any = None, **_: Any
) -> Any:
    groups = query.shape[1] // key.shape[1]
    key, value = (heads.repeat_interleave(groups, dim=1) for heads in (key, value))
    logits = 2 * query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = (logits if attention_mask is None else logits + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(OWN_ATTENTION, _attend)
AttentionMaskInterface.register(OWN_ATTENTION, eager_mask)


def attend_sharper(raw: Any) -> tuple[Any, Any]:
    """An attention function of one's own, whose logits are doubled."""
    raw.set_attn_implementation(OWN_ATTENTION)
    return raw, raw


class _Adapter(nn.Module):
    def __init__(self, inner: nn.Module, size: int) -> None:
        super().__init__()
        self.inner, self.down, self.up = inner, nn.Linear(size, 6), nn.Linear(6, size)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        output = self.inner(*inputs, **kwargs)
        return output + self.up(nn.functional.gelu(self.down(output)))


def add_adapters(raw: Any) -> tuple[Any, Any]:
    """A bottleneck with a non-linearity after the last projection of each layer."""
    torch.manual_seed(3)
    paths = []
    for name, module in raw.base_model.named_modules():
        if name.endswith(("output.dense", "ffn.lin2", "ffn_output", "mlp.Wo", "mlp.c_proj", "down_proj")):
            paths += [(name, module)] if "attention" not in name else []
    assert paths
    for name, module in paths:
        parent, _, last = name.rpartition(".")
        setattr(raw.base_model.get_submodule(parent), last, _Adapter(module, raw.config.hidden_size).to(raw.dtype))
    return raw, raw


def enable_checkpointing(raw: Any) -> tuple[Any, Any]:
    """Activations that are computed again in the backward pass."""
    raw.gradient_checkpointing_enable()
    return raw, raw


CHANGES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    **{name: lambda raw, name=name: give_head(raw, name) for name in HEADS},
    "dict": lambda raw: wrap_output(raw, lambda logits: {"loss": None, "logits": logits}),
    "tuple": lambda raw: wrap_output(raw, lambda logits: (logits,)),
    "attention": attend_sharper,
    "adapter": add_adapters,
    "checkpointing": enable_checkpointing,
    "compiled": lambda raw: (torch.compile(raw), raw),
}
"""Functions from a model to the changed model and the model of its reference."""
