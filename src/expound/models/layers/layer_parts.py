"""The weights of a layer and of a head in one form for all families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from expound.errors import ExpoundError
from expound.models.layers import activations
from expound.models.layers.architecture import get_module
from expound.models.layers.record import Head, Record
from expound.models.outputs import to_float32

NORMS_FROM_ZERO = ("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm")
"""Norms that store their weight less 1."""


def read_weight(module: nn.Module, name: str) -> Tensor:
    """Return a weight of a module in float32 at least, also if Accelerate has offloaded it or it has 8 or 4 bits."""
    weight: Tensor = getattr(module, name)
    if weight.is_meta:
        # Accelerate leaves a meta tensor in the module and loads the weight in a hook before each forward.
        hook: Any = module._hf_hook
        weight = hook.weights_map[name].to(hook.execution_device)
    return to_float32(_dequantize(module, weight))


def _dequantize(module: nn.Module, weight: Tensor) -> Tensor:
    """Return a weight that bitsandbytes stores in 8 or 4 bits as floating point numbers; other weights unchanged."""
    if type(weight).__name__ not in ("Int8Params", "Params4bit"):
        return weight
    # See `loading.quantized.keep_weight_order`: the packing cannot be undone.
    if getattr(getattr(weight, "quant_state", None), "packing_format_for_cpu", False):
        raise ExpoundError("4-bit weights were reordered for this CPU: load the model by name with dtype='4bit'")
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight  # noqa: PLC0415

    numbers: Tensor = dequantize_bnb_weight(weight, getattr(module, "state", None))
    return numbers.detach()


@dataclass(frozen=True, slots=True)
class Affine:
    """The map x ↦ W x + b with `weight` [out, in] and `bias` [out]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the map: [..., in] → [..., out]."""
        return nn.functional.linear(x, self.weight, self.bias)

    def select_outputs(self, columns: Sequence[int] | None) -> Affine:
        """Return the map to these outputs only; None: to all."""
        if columns is None:
            return self
        start, stop = columns[0], columns[0] + len(columns)
        # A slice copies no weights.
        is_slice = columns == tuple(range(start, stop))
        index = slice(start, stop) if is_slice else torch.tensor(columns, device=self.weight.device)
        return Affine(self.weight[index], None if self.bias is None else self.bias[index])


@dataclass(frozen=True, slots=True)
class Norm:
    """A LayerNorm (`centered`), an RMSNorm, or the identity (not `active`)."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centered: bool
    active: bool = True

    def scale(self, x: Tensor) -> Tensor:
        """Return 1 / sqrt(var + eps) [..., 1] at x, in float32 at least; for an RMSNorm, of the mean square."""
        if not self.active:
            return x.new_ones(*x.shape[:-1], 1)
        # Squares of float16 activations overflow at 256.
        x = to_float32(x)
        square = x.var(-1, correction=0, keepdim=True) if self.centered else x.pow(2).mean(-1, keepdim=True)
        return (square + self.eps).rsqrt()

    def linear(self, x: Tensor, scale: Tensor) -> Tensor:
        """Apply the norm with a fixed scale and without the bias, so that components of x can be normed one by one."""
        if not self.active:
            return x
        scaled = (x - x.mean(-1, keepdim=True) if self.centered else x) * scale
        return scaled if self.weight is None else scaled * self.weight

    def apply_without_scale(self, x: Tensor) -> Tensor:
        """Apply the norm with a scale of 1 and without the bias."""
        return self.linear(x, x.new_ones(1))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the norm."""
        return self.apply_with_scale(x, self.scale(x))

    def apply_with_scale(self, x: Tensor, scale: Tensor) -> Tensor:
        """Apply the norm, bias included, with this scale instead of its own."""
        scaled = self.linear(x, scale)
        return scaled if self.bias is None else scaled + self.bias


def to_affine(module: nn.Module) -> Affine:
    """Return the weights of a projection, in float32 at least.

    With LoRA adapters these are the weights that they add up to.

    Raises:
        ExpoundError: the module is neither a linear layer nor GPT-2's transposed one, or its adapter is no plain LoRA.
    """
    if hasattr(module, "modules_to_save"):
        return to_affine(_choose_head_copy(module))
    if hasattr(module, "lora_A"):
        return _add_adapters(module)
    # GPT-2's Conv1D is a linear layer that stores its weight as [in, out].
    if isinstance(module, Conv1D):
        return Affine(read_weight(module, "weight").T, read_weight(module, "bias"))
    if isinstance(module, nn.Linear):
        return Affine(read_weight(module, "weight"), None if module.bias is None else read_weight(module, "bias"))
    raise ExpoundError(
        f"expected a linear layer, got {type(module).__name__}; merge adapters into the model first (merge_and_unload)"
    )


def is_linear_layer(module: nn.Module) -> bool:
    """Return whether a module is a linear layer, also GPT-2's or one with an adapter."""
    if hasattr(module, "original_module"):
        module = _choose_head_copy(module)
    return isinstance(module, nn.Linear | Conv1D) or hasattr(module, "lora_A")


def _choose_head_copy(module: Any) -> nn.Module:
    """Return the copy of a head that PEFT trains and calls, or the original while adapters are disabled."""
    used: nn.Module = module.original_module
    if not module.disable_adapters:
        used = module.modules_to_save[module.active_adapter]
    return used


def _add_adapters(module: Any) -> Affine:
    """Return the weights of a linear layer, its active LoRA adapters added."""
    affine = to_affine(module.base_layer)
    if module.merged or module.disable_adapters:
        return affine
    weight = affine.weight
    for name in module.active_adapters:
        if name not in module.lora_A:
            continue
        # PEFT below 0.16 keeps DoRA, its only variant, in `use_dora`.
        if module.lora_bias[name] or name in getattr(module, "lora_variant", ()) or module.use_dora[name]:
            raise ExpoundError("expected LoRA without variants and biases: merge the adapter first (merge_and_unload)")
        update = to_float32(module.get_delta_weight(name))
        if isinstance(module.base_layer, Conv1D):
            update = update.T
        weight = weight + update
    return Affine(weight, affine.bias)


def is_norm_layer(module: nn.Module) -> bool:
    """Return whether the module is a LayerNorm or an RMSNorm."""
    # Each family of transformers defines an RMSNorm class of its own (LlamaRMSNorm, Qwen2RMSNorm, …).
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))


def to_norm(module: nn.Module) -> Norm:
    """Return the weights of a norm, in float32 at least; an identity for `nn.Identity`.

    Raises:
        ExpoundError: the module is no norm.
    """
    # ModernBERT's first layer has an identity in place of its attention's norm.
    if isinstance(module, nn.Identity):
        return Norm(None, None, 0.0, centered=False, active=False)
    if not is_norm_layer(module):
        raise ExpoundError(f"expected a LayerNorm or RMSNorm, got {type(module).__name__}")
    norm: Any = module
    weight = None if getattr(norm, "weight", None) is None else read_weight(norm, "weight")
    if weight is not None and type(norm).__name__ in NORMS_FROM_ZERO:
        weight = 1 + weight
    bias = None if getattr(norm, "bias", None) is None else read_weight(norm, "bias")
    if isinstance(module, nn.LayerNorm):
        return Norm(weight, bias, norm.eps, centered=True)
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    # torch.nn.RMSNorm reads eps=None as the machine epsilon of its type.
    if eps is None:
        eps = torch.finfo(norm.weight.dtype).eps
    return Norm(weight, None, eps, centered=False)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The weights of a layer, independent of how its family stores them.

    `value` [H·d_h, d] is repeated under grouped queries; `into` and `gate` are [d_ff, d]. `output` and `out` include
    the weights of the norms of their outputs, if there are any; `norms_of_outputs` tells the scales of these.
    """

    value: Affine
    output: Affine
    norms: tuple[Norm, Norm]
    into: Affine
    out: Affine
    activation: str
    norm_first: bool
    gate: Affine | None = None
    norms_of_outputs: tuple[Norm, ...] = ()


def get_layer_parts(layer: nn.Module, record: Record) -> LayerParts:
    """Return the weights of a layer, whose parts are those of the record."""
    attention, feed_forward = record.attention, record.feed_forward
    value = to_affine(get_module(layer, attention.value)).select_outputs(attention.columns)
    output, out = (to_affine(get_module(layer, path)) for path in (attention.output, feed_forward.out))
    gate = None
    if feed_forward.gate:
        gate = to_affine(get_module(layer, feed_forward.gate)).select_outputs(feed_forward.gate_columns)
    norms = tuple(to_norm(get_module(layer, path)) for path in record.norms_of_outputs)
    if norms:
        if any(affine.bias is not None for affine in (value, output, out)):
            raise ExpoundError("a layer normalizes outputs with biases: no decomposition")
        output, out = (_scale_outputs(affine, norm) for affine, norm in zip((output, out), norms, strict=True))
    return LayerParts(
        value=value,
        output=output,
        norms=(_get_norm(layer, record.norms[0]), _get_norm(layer, record.norms[1])),
        into=to_affine(get_module(layer, feed_forward.into)).select_outputs(feed_forward.columns),
        out=out,
        activation=activations.get_activation_name(get_module(layer, feed_forward.activation)),
        norm_first=record.norm_first,
        gate=gate,
        norms_of_outputs=norms,
    )


def _get_norm(layer: nn.Module, path: str | None) -> Norm:
    return to_norm(nn.Identity() if path is None else get_module(layer, path))


def _scale_outputs(affine: Affine, norm: Norm) -> Affine:
    """Return a map without bias, followed by an RMSNorm whose scale is 1."""
    return Affine(norm.apply_without_scale(affine.weight.T).T, None)


@dataclass(frozen=True, slots=True)
class HeadParts:
    """The weights of a head: [dense → activation → [norm]] → output."""

    output: Affine
    dense: Affine | None
    activation: str
    norm: Norm | None


def get_head_parts(model: PreTrainedModel, head: Head) -> HeadParts:
    """Return the weights of the model's head."""
    return HeadParts(
        to_affine(get_module(model, head.output)),
        to_affine(get_module(model, head.dense)) if head.dense else None,
        head.activation,
        to_norm(get_module(model, head.norm)) if head.norm else None,
    )
