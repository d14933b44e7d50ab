"""The weights of a layer and of a head in one form for all families, and the record of where a model has them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from expound.errors import ExpoundError
from expound.models.batch import to_float32
from expound.models.layers import activations
from expound.models.layers.architecture import get_module


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention, by paths that start at the layer.

    Args:
        output: the projection of all heads.
        norm: the norm before attention, or the one after its residual connection.
        norm_of_output: a norm of the attention's output, before the residual is added.
        factor: what the output is multiplied by before the residual is added.
        value: the projection to the values; None: the values are not understood.
        columns: the outputs of `value` that attention gets, one per number of every head; None: all.
        latent: a projection to fewer numbers, which `value` reads, in place of attention's input (DeepSeek).
        latent_columns: the outputs of `latent` that are meant; None: all.
        latent_norm: the norm between `latent` and `value`.
    """

    output: str
    norm: str | None
    norm_of_output: str | None = None
    factor: float = 1.0
    value: str | None = None
    columns: tuple[int, ...] | None = None
    latent: str | None = None
    latent_columns: tuple[int, ...] | None = None
    latent_norm: str | None = None

    @property
    def added(self) -> str:
        """The part whose output, times the factor, is added to the residual."""
        return self.norm_of_output or self.output


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A layer's feed-forward: into → activation → out, and its norm; paths start at the layer.

    With `gate` it is out(activation(gate) ⊙ into). `norm_of_output`: a norm of the feed-forward's output, before the
    residual is added. `columns`, `gate_columns`: the outputs of `into` and `gate` that are meant; None: all.
    `is_parallel`: it reads the layer's input, beside attention, and not the sum after attention. `experts`: what is
    added to it reading the same; without `into`, there are experts alone.
    """

    into: str | None
    activation: str
    out: str
    norm: str | None
    gate: str | None = None
    norm_of_output: str | None = None
    columns: tuple[int, ...] | None = None
    gate_columns: tuple[int, ...] | None = None
    is_parallel: bool = False
    experts: str | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """The parts of a layer: attention is added to its input, and usually a feed-forward.

    Args:
        attention: the first half of the layer.
        feed_forward: the second half; None: it is not one of into → activation → out.
        norm_first: norms come before attention and feed-forward, not after their residuals.
        last_norm: the norm after all of the layer, if norms do not come first.
    """

    attention: Attention
    feed_forward: FeedForward | None
    norm_first: bool
    last_norm: str | None = None

    @property
    def norm_of_out(self) -> str | None:
        """The norm of the feed-forward's output."""
        return None if self.feed_forward is None else self.feed_forward.norm_of_output

    @property
    def experts(self) -> str | None:
        """The experts of the feed-forward."""
        return None if self.feed_forward is None else self.feed_forward.experts


@dataclass(frozen=True, slots=True)
class Head:
    """The modules after the last layer: [dense → activation → [norm]] → output; paths start at the whole model."""

    output: str
    dense: str | None = None
    activation: str = ""
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The parts of a model: layers, the norm after all of them, whose path starts at the whole model, and the head."""

    layers: tuple[Layer, ...]
    final_norm: str | None
    head: Head


_FORMS: dict[type[nn.Module], tuple[bool, bool]] = {}
"""Whether a class of norms centres its input, and whether it stores its weight less 1, as Gemma's do."""


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
    """Return whether the module is a LayerNorm or an RMSNorm, of whichever class, by what it computes."""
    return _find_form(module) is not None


def _find_form(module: nn.Module) -> tuple[bool, bool] | None:
    """Return the form of a norm, see `_FORMS`; None if the module is no norm of the last dimension."""
    weight: Tensor | None = getattr(module, "weight", None)
    shape: Sequence[int] = () if weight is None else weight.shape
    if weight is None and "norm" in type(module).__name__.lower():
        shape = getattr(module, "normalized_shape", (8,))
    if not isinstance(shape, Sequence) or len(shape) != 1 or any(True for _ in module.children()):
        return None
    # Each family of transformers defines classes of its own (LlamaRMSNorm, CohereLayerNorm, …). One of Falcon Mamba's
    # has a buffer of this name that it does not use.
    if type(module) not in _FORMS and "weight" not in module._buffers:
        for form in itertools.product((True, False), (False, True)):
            if _is_computed_by(_make_norm(module, *form), module, shape[0]):
                _FORMS[type(module)] = form
    return _FORMS.get(type(module))


@torch.no_grad()
def _is_computed_by(norm: Norm, module: nn.Module, size: int) -> bool:
    """Return whether a norm's weights are what its module computes with them."""
    device = None if norm.weight is None else norm.weight.device
    # Two rows, of which SqueezeBERT's norm, a subclass of LayerNorm over another dimension, makes something else.
    x = torch.linspace(-1, 2, 2 * size, device=device).sin().unflatten(0, (2, -1))
    dtype = x.dtype if norm.weight is None else cast(Tensor, module.weight).dtype
    try:
        # Hooks are not for this call.
        own = module.forward(x[None].to(dtype))[0]
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False
    return torch.allclose(to_float32(own), norm(x).to(to_float32(own)), rtol=1e-2, atol=1e-2)


def to_norm(module: nn.Module) -> Norm:
    """Return the weights of a norm, in float32 at least; an identity for `nn.Identity`.

    Raises:
        ExpoundError: the module is no norm.
    """
    # ModernBERT's first layer has an identity in place of its attention's norm.
    if isinstance(module, nn.Identity):
        return Norm(None, None, 0.0, centered=False, active=False)
    form = _find_form(module)
    if form is None:
        raise ExpoundError(f"expected a LayerNorm or RMSNorm, got {type(module).__name__}")
    return _make_norm(module, *form)


def _make_norm(module: Any, centered: bool, from_zero: bool) -> Norm:
    weight = None if getattr(module, "weight", None) is None else read_weight(module, "weight")
    if weight is not None and from_zero:
        weight = 1 + weight
    bias = None if getattr(module, "bias", None) is None else read_weight(module, "bias")
    # torch.nn.RMSNorm reads eps=None as the machine epsilon of its type.
    machine = torch.finfo(torch.float32 if weight is None else module.weight.dtype).eps
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-5))
    return Norm(weight, bias, machine if eps is None else eps, centered=centered)


def is_experts(module: nn.Module) -> bool:
    """Return whether a module has the weights of many gated feed-forwards, in the form of most of transformers."""
    first, second = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.is_meta:
        return False
    is_known = activations.find_activation_name(getattr(module, "act_fn", module)) is not None
    # Weights [E, 2 d_ff, d] of gates and their values, and [E, d, d_ff].
    return is_known and first.ndim == 3 and first.shape == (len(second), 2 * second.shape[-1], second.shape[-2])


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts, whose `module` has their weights, see `is_experts`."""

    module: Any

    def propagate(self, components: Tensor, point: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Propagate components [c, K, d] of the inputs `point` [c, d] through the experts: [c, K, d].

        Gates are held, and so is the routing: the `chosen` experts [c, k] and their `weights` [c, k].
        """
        out = torch.zeros_like(components)
        slope = activations.zero_origin_slope(activations.find_activation_name(self.module.act_fn) or "")
        for number in chosen.unique().tolist():
            # All components of an expert's positions at once; few large products are fastest.
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            gate, into = to_float32(self.module.gate_up_proj[number]).chunk(2)
            height = point[rows] @ gate.T
            theta = slope(height) * height * weights[rows, slots, None]
            wide = (components[rows] @ into.T).mul_(theta[:, None])
            out.index_add_(0, rows, wide @ to_float32(self.module.down_proj[number]).T)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """The weights of a layer around its attention, independent of how its family stores them.

    `output` includes what it is multiplied by and the weights of the norm of its output, if there is one;
    `norm_of_output` tells the scale of that. `norms`: those before attention and feed-forward, or after their residual
    connections.
    """

    output: Affine
    norms: tuple[Norm, Norm]
    norm_first: bool
    norm_of_output: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts(AttentionParts):
    """The weights of a whole layer.

    `value` [H·d_h, d] is repeated under grouped queries; `into` and `gate` are [d_ff, d]. `out` is as `output`. A
    feed-forward that `is_parallel` reads the layer's input. `latent_norm`: `value` includes its weights, but not its
    scale. `experts` are added to the feed-forward, which has a width of 0 if there are experts alone.
    """

    value: Affine
    into: Affine
    out: Affine
    activation: str
    gate: Affine | None = None
    norm_of_out: Norm | None = None
    is_parallel: bool = False
    latent_norm: Norm | None = None
    experts: Experts | None = None


def get_layer_parts(layer: nn.Module, record: Layer) -> AttentionParts:
    """Return the weights of a layer by its record: `LayerParts` if that has all of them."""
    attention, feed_forward = record.attention, record.feed_forward
    output, norm_of_output = _get_output(layer, attention.output, attention.norm_of_output, attention.factor)
    last = record.last_norm if feed_forward is None else feed_forward.norm
    norms = (_get_norm(layer, attention.norm), _get_norm(layer, last))
    around = AttentionParts(output=output, norms=norms, norm_first=record.norm_first, norm_of_output=norm_of_output)
    if feed_forward is None or attention.value is None:
        return around
    value = to_affine(get_module(layer, attention.value)).select_outputs(attention.columns)
    latent_norm = None
    if attention.latent and attention.latent_norm:
        latent = to_affine(get_module(layer, attention.latent)).select_outputs(attention.latent_columns)
        latent_norm = to_norm(get_module(layer, attention.latent_norm))
        if latent_norm.centered or not latent_norm.bias is value.bias is latent.bias is None:
            return around
        # One matrix for both projections, so that components are not projected twice.
        value = Affine(value.weight @ latent_norm.apply_without_scale(latent.weight.T).T, None)
    if norm_of_output is not None and value.bias is not None:
        return around
    size = len(output.weight)
    into, out = Affine(output.weight.new_empty(0, size), None), Affine(output.weight.new_empty(size, 0), None)
    activation, gate, norm_of_out = "linear", None, None
    if feed_forward.into:
        into = to_affine(get_module(layer, feed_forward.into)).select_outputs(feed_forward.columns)
        out, norm_of_out = _get_output(layer, feed_forward.out, feed_forward.norm_of_output)
        activation = activations.find_activation_name(get_module(layer, feed_forward.activation)) or ""
    if feed_forward.gate:
        gate = to_affine(get_module(layer, feed_forward.gate)).select_outputs(feed_forward.gate_columns)
    return LayerParts(
        value=value,
        output=output,
        norms=norms,
        into=into,
        out=out,
        activation=activation,
        norm_first=record.norm_first,
        gate=gate,
        norm_of_output=norm_of_output,
        norm_of_out=norm_of_out,
        is_parallel=feed_forward.is_parallel,
        latent_norm=latent_norm,
        experts=Experts(get_module(layer, feed_forward.experts)) if feed_forward.experts else None,
    )


def _get_norm(layer: nn.Module, path: str | None) -> Norm:
    return to_norm(nn.Identity() if path is None else get_module(layer, path))


def _get_output(layer: nn.Module, path: str, norm_path: str | None, factor: float = 1.0) -> tuple[Affine, Norm | None]:
    """Return a projection that is added to the residual, times a factor, and the norm between, held at a scale of 1."""
    affine = to_affine(get_module(layer, path))
    norm = None if norm_path is None else to_norm(get_module(layer, norm_path))
    if norm is not None:
        if affine.bias is not None or norm.bias is not None:
            raise ExpoundError("a layer normalizes outputs with biases: no decomposition")
        affine = Affine(norm.apply_without_scale(affine.weight.T).T, None)
    if factor != 1:
        affine = Affine(affine.weight * factor, None if affine.bias is None else affine.bias * factor)
    return affine, norm


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
