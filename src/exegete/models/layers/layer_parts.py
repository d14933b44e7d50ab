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
from exegete.models.layers.architecture import architecture_of, head_part, part
from exegete.models.layers.head_activation import head_activation
from exegete.models.loading.quantized import as_numbers


def wide(x: Tensor) -> Tensor:
    """In float32, if it was in less."""
    return x.float() if x.element_size() < 4 else x


def stored(module: nn.Module, name: str) -> Tensor:
    """A weight of a module, in float32 at least, also where Accelerate keeps it elsewhere, or it is in 8 or 4 bits."""
    weight: Tensor = getattr(module, name)
    if weight.is_meta:
        hook: Any = module._hf_hook
        weight = hook.weights_map[name].to(hook.execution_device)
    return wide(as_numbers(module, weight))


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
        x = wide(x)
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


def affine(module: nn.Module) -> Affine:
    """The weights of a projection, in float32 at least.

    Raises:
        ExegeteError: it is neither a linear layer nor GPT-2's transposed one.
    """
    if isinstance(module, Conv1D):
        return Affine(stored(module, "weight").T, stored(module, "bias"))
    if isinstance(module, nn.Linear):
        return Affine(stored(module, "weight"), None if module.bias is None else stored(module, "bias"))
    raise ExegeteError(
        f"expected a linear layer, got {type(module).__name__}; merge adapters into the model first (merge_and_unload)"
    )


def is_norm(module: nn.Module) -> bool:
    """Whether it is a LayerNorm or an RMSNorm, under whatever name."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))


def norm(module: nn.Module) -> Norm:
    """The numbers of a norm, in float32 at least; an identity where a family has none."""
    if isinstance(module, nn.Identity):
        return Norm(None, None, 0.0, centred=False, active=False)
    if not is_norm(module):
        raise ExegeteError(f"expected a LayerNorm or RMSNorm, got {type(module).__name__}")
    values: Any = module
    weight, bias = (
        None if getattr(values, name, None) is None else stored(values, name) for name in ("weight", "bias")
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


def layer_parts(model: PreTrainedModel, layer: nn.Module) -> LayerParts:
    """The numbers of one of the model's layers."""
    found = architecture_of(model)
    wide_layer = found.feed_forward
    output = affine(part(layer, found.attention.output))
    into = affine(part(layer, wide_layer.into))
    gate = affine(part(layer, wide_layer.gate)) if wide_layer.gate else None
    if wide_layer.gate_fused:
        half = len(into.weight) // 2
        gate, into = into.rows(0, half), into.rows(half, 2 * half)
    return LayerParts(
        value=_values(layer, found.attention, output, model.config.num_attention_heads),
        output=output,
        norms=(norm(part(layer, found.norms[0])), norm(part(layer, found.norms[1]))),
        into=into,
        out=affine(part(layer, wide_layer.out)),
        activation=activations.name_of(part(layer, wide_layer.activation)),
        norm_first=found.norm_first,
        gate=gate,
    )


def _values(layer: nn.Module, found: Attention, output: Affine, heads: int) -> Affine:
    """The value projection with as many heads as there are queries."""
    fused = affine(part(layer, found.value))
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


def head_parts(model: PreTrainedModel) -> HeadParts:
    """The numbers of the model's head."""
    head = architecture_of(model).head
    return HeadParts(
        output=affine(head_part(model, head.output)),
        dense=affine(head_part(model, head.dense)) if head.dense else None,
        activation=head_activation(model) if head.dense else "",
        norm=norm(head_part(model, head.norm)) if head.norm else None,
    )
