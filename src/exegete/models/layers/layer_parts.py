"""The numbers of a layer's parts, however its family stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from exegete.errors import ExegeteError
from exegete.models.families import Attention
from exegete.models.layers import activations
from exegete.models.layers.architecture import get_architecture, get_head_module, get_module
from exegete.models.layers.head_activation import get_head_activation
from exegete.models.loading.quantized import dequantize


def to_float32(x: Tensor) -> Tensor:
    """In float32, if it was in less."""
    return x.float() if x.element_size() < 4 else x


def read_weight(module: nn.Module, name: str) -> Tensor:
    """A weight of a module, in float32 at least, also where Accelerate keeps it elsewhere, or it is in 8 or 4 bits."""
    weight: Tensor = getattr(module, name)
    if weight.is_meta:
        hook: Any = module._hf_hook
        weight = hook.weights_map[name].to(hook.execution_device)
    return to_float32(dequantize(module, weight))


@dataclass(frozen=True, slots=True)
class Affine:
    """x ↦ W x + b, `weight` [out, in], `bias` [out]; however the family stores it."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return nn.functional.linear(x, self.weight, self.bias)

    def rows(self, start: int, stop: int) -> Affine:
        """The outputs from `start` to `stop`."""
        return Affine(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm (`centred`), RMSNorm, or nothing at all (`weight` None and not `active`)."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool
    active: bool = True

    def scale(self, x: Tensor) -> Tensor:
        """1 / sqrt(var + eps) [..., 1] at x, in float32 at least; RMSNorm: of the mean square."""
        if not self.active:
            return x.new_ones(*x.shape[:-1], 1)
        x = to_float32(x)
        square = x.var(-1, correction=0, keepdim=True) if self.centred else x.pow(2).mean(-1, keepdim=True)
        return (square + self.eps).rsqrt()

    def linear(self, x: Tensor, scale: Tensor) -> Tensor:
        """Applies the norm to a component x with its scale frozen, without the bias."""
        if not self.active:
            return x
        scaled = (x - x.mean(-1, keepdim=True) if self.centred else x) * scale
        return scaled if self.weight is None else scaled * self.weight

    def unscaled(self, x: Tensor) -> Tensor:
        """Applies the norm to a component with a scale of 1, without the bias."""
        return self.linear(x, x.new_ones(1))

    def __call__(self, x: Tensor) -> Tensor:
        """Applies the norm with the scale measured at x."""
        return self.frozen(x, self.scale(x))

    def frozen(self, x: Tensor, scale: Tensor) -> Tensor:
        """The whole of it, with the scale given."""
        scaled = self.linear(x, scale)
        return scaled if self.bias is None else scaled + self.bias


def to_affine(module: nn.Module) -> Affine:
    """The weights of a projection, in float32 at least.

    Raises:
        ExegeteError: it is neither a linear layer nor GPT-2's transposed one.
    """
    if isinstance(module, Conv1D):
        return Affine(read_weight(module, "weight").T, read_weight(module, "bias"))
    if isinstance(module, nn.Linear):
        return Affine(read_weight(module, "weight"), None if module.bias is None else read_weight(module, "bias"))
    raise ExegeteError(
        f"expected a linear layer, got {type(module).__name__}; merge adapters into the model first (merge_and_unload)"
    )


def is_norm_layer(module: nn.Module) -> bool:
    """Whether it is a LayerNorm or an RMSNorm, under whatever name."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))


def to_norm(module: nn.Module) -> Norm:
    """The numbers of a norm, in float32 at least; an identity where a family has none."""
    if isinstance(module, nn.Identity):
        return Norm(None, None, 0.0, centred=False, active=False)
    if not is_norm_layer(module):
        raise ExegeteError(f"expected a LayerNorm or RMSNorm, got {type(module).__name__}")
    values: Any = module
    weight, bias = (
        None if getattr(values, name, None) is None else read_weight(values, name) for name in ("weight", "bias")
    )
    if isinstance(module, nn.LayerNorm):
        return Norm(weight, bias, values.eps, centred=True)
    eps = values.variance_epsilon if hasattr(values, "variance_epsilon") else values.eps
    return Norm(weight, None, torch.finfo(values.weight.dtype).eps if eps is None else eps, centred=False)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A layer's numbers. `value` [H·d_h, d] is repeated under grouped queries; `into` and `gate` [d_ff, d]."""

    value: Affine
    output: Affine
    norms: tuple[Norm, Norm]
    into: Affine
    out: Affine
    activation: str
    norm_first: bool
    gate: Affine | None = None


def get_layer_parts(model: PreTrainedModel, layer: nn.Module) -> LayerParts:
    """The numbers of one of the model's layers."""
    found = get_architecture(model)
    wide_layer = found.feed_forward
    output = to_affine(get_module(layer, found.attention.output))
    into = to_affine(get_module(layer, wide_layer.into))
    gate = to_affine(get_module(layer, wide_layer.gate)) if wide_layer.gate else None
    if wide_layer.has_fused_gate:
        half = len(into.weight) // 2
        gate, into = into.rows(0, half), into.rows(half, 2 * half)
    return LayerParts(
        value=_values(layer, found.attention, output, model.config.num_attention_heads),
        output=output,
        norms=(to_norm(get_module(layer, found.norms[0])), to_norm(get_module(layer, found.norms[1]))),
        into=into,
        out=to_affine(get_module(layer, wide_layer.out)),
        activation=activations.get_activation_name(get_module(layer, wide_layer.activation)),
        norm_first=found.norm_first,
        gate=gate,
    )


def _values(layer: nn.Module, found: Attention, output: Affine, heads: int) -> Affine:
    """The value projection with as many heads as there are queries."""
    fused = to_affine(get_module(layer, found.value))
    index, parts = found.part
    size = len(fused.weight) // parts
    value = fused.rows(index * size, (index + 1) * size)
    repeats = output.weight.shape[1] // size
    if repeats == 1:
        return value
    width = output.weight.shape[1] // heads

    def repeated(x: Tensor) -> Tensor:
        by_head: Tensor = x.unflatten(0, (-1, width))
        return by_head.repeat_interleave(repeats, 0).flatten(0, 1)

    return Affine(repeated(value.weight), None if value.bias is None else repeated(value.bias))


@dataclass(frozen=True, slots=True)
class HeadParts:
    """A head's numbers: [dense → activation → [norm]] → output."""

    output: Affine
    dense: Affine | None
    activation: str
    norm: Norm | None


def get_head_parts(model: PreTrainedModel) -> HeadParts:
    """The numbers of the model's head."""
    head = get_architecture(model).head
    return HeadParts(
        output=to_affine(get_head_module(model, head.output)),
        dense=to_affine(get_head_module(model, head.dense)) if head.dense else None,
        activation=get_head_activation(model) if head.dense else "",
        norm=to_norm(get_head_module(model, head.norm)) if head.norm else None,
    )
