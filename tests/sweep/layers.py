"""Layers of the usual encoders and decoders taken apart with hooks on the Hugging Face model alone, slowly."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

# The projections to the values and behind attention, the norms around attention and feed-forward, and its projections.
BERT = (
    "attention.self.value", "attention.output.dense", "attention.output.LayerNorm", "output.LayerNorm",
    "intermediate.dense", "output.dense",
)  # fmt: skip
PARTS = {
    **dict.fromkeys(("bert", "roberta", "electra", "xlm-roberta"), BERT),
    "deberta-v2": ("attention.self.value_proj", *BERT[1:]),
    "distilbert": (
        "attention.v_lin", "attention.out_lin", "sa_layer_norm", "output_layer_norm", "ffn.lin1", "ffn.lin2"
    ),
    "albert": (
        "attention.value", "attention.dense", "attention.LayerNorm", "full_layer_layer_norm", "ffn", "ffn_output"
    ),
    "modernbert": ("attn.Wqkv", "attn.Wo", "attn_norm", "mlp_norm", "mlp.Wi", "mlp.Wo"),
    "gpt2": ("attn.c_attn", "attn.c_proj", "ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"),
    "llama": (
        "self_attn.v_proj", "self_attn.o_proj", "input_layernorm", "post_attention_layernorm", "mlp.up_proj",
        "mlp.down_proj",
    ),
}  # fmt: skip
NORM_FIRST = {"modernbert": "final_norm", "gpt2": "ln_f", "llama": "norm"}
"""Families whose norms come before attention and feed-forward, with the norm after all layers."""
HEADS = {
    "bert": ("bert.pooler.dense", "tanh", "classifier"),
    **dict.fromkeys(("roberta", "xlm-roberta"), ("classifier.dense", "tanh", "classifier.out_proj")),
    "electra": ("classifier.dense", "gelu", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "relu", "classifier"),
    "deberta-v2": ("pooler.dense", "gelu", "classifier"),
    "albert": ("albert.pooler", "tanh", "classifier"),
    "modernbert": ("head.dense", "gelu", "head.norm", "classifier"),
    **dict.fromkeys(("gpt2", "llama"), ("score",)),
}
"""The parts behind the last hidden states: projections, activations and norms."""


def find(layer: Any, path: str) -> Any:
    """The module at a path, or None."""
    try:
        return layer.get_submodule(path)
    except AttributeError:
        return None


def make_linear(module: Any, size: int) -> tuple[Any, Tensor]:
    """A module's linear part as a function, and its bias."""
    bias = module(torch.zeros(1, 1, size, dtype=torch.float64))[0, 0]
    return lambda x: module(x[None].contiguous())[0] - bias, bias


def add_bias(parts: Tensor, bias: Any) -> Tensor:
    """Components [..., K, d] with a bias [..., d] shared in proportion to |⟨x_k, b⟩|."""
    if bias is None:
        return parts
    inner = (parts * bias[..., None, :]).sum(-1, keepdim=True).abs()
    return parts + inner / (inner.sum(-2, keepdim=True) + 1e-12) * bias[..., None, :]


def apply_norm(norm: Any, parts: Tensor, point: Tensor, *, eps: bool = True) -> Tensor:
    """A norm's linear part on components [..., K, d] of the vectors [..., d], held at its scale there."""
    if isinstance(norm, torch.nn.Identity):
        return parts
    own = getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)) if eps else 0.0
    if hasattr(norm, "bias"):
        parts = parts - parts.mean(-1, keepdim=True)
        point = point - point.mean(-1, keepdim=True)
    return parts / (point.square().mean(-1, keepdim=True) + own).sqrt()[..., None, :] * norm.weight


@dataclass
class Layer:
    """x [L, d] → middle [L, d] = x + attention → out [L, d]; `end`: before the last norm.

    `parts` [H, j, i, d]: what head h brings from j to i. `without` [j, i, d]: `out` if the value of j is zero.
    """

    module: Any
    x: Tensor
    middle: Tensor
    end: Tensor
    out: Tensor
    parts: Tensor
    without: Tensor


class Layers:
    """The layers of a reference's model at its example."""

    def __init__(self, reference: Any) -> None:
        self.reference, self.copy = reference, reference.copy()
        self.raw = self.copy.raw
        self.family = self.raw.config.model_type
        self.value, self.output, self.first, self.second, self.into, self.back = PARTS[self.family]
        self.norm_first = self.family in NORM_FIRST
        self.heads = self.raw.config.num_attention_heads
        self.readout = reference.find_readout()
        self.layers: list[Layer] = []
        with torch.no_grad():
            self.take_apart()

    def take_apart(self) -> None:
        plain = self.run()
        for number, module in enumerate(plain["module"]):
            x, mixed, added, end, out = (plain[name][number] for name in ("x", "mixed", "added", "end", "out"))
            project, _ = make_linear(find(module, self.output), mixed.shape[-1])
            parts, without = [], []
            for place in range(len(x)):
                gone = self.run(number, place)
                fall = (mixed - gone["mixed"][number]).unflatten(-1, (self.heads, -1))
                one = torch.eye(self.heads, dtype=torch.float64)[:, None, :, None]
                parts.append(torch.stack([project(each.flatten(-2)) for each in fall * one]))
                without.append(gone["out"][number])
            end = out if self.norm_first else end
            self.layers.append(Layer(module, x, x + added, end, out, torch.stack(parts, 1), torch.stack(without)))

    def run(self, number: int | None = None, place: int = 0) -> dict[str, list[Any]]:
        """What the parts of each layer get and give, without the value of one position in one layer."""
        seen: dict[str, list[Any]] = defaultdict(list)

        def enter(module: Any, inputs: Any, kwargs: Any) -> None:
            seen["module"].append(module)
            seen["x"].append((inputs[0] if inputs else kwargs["hidden_states"])[0])

        def zero(module: Any, inputs: Any, output: Any) -> Any:
            seen["value"].append(output)
            if len(seen["value"]) - 1 == number:
                # Fused projections end with the values.
                output = output.clone()
                start = 2 * output.shape[-1] // 3 if self.value.endswith(("c_attn", "Wqkv")) else 0
                output[:, place, start:] = 0
            return output

        def keep(module: Any, inputs: Any, output: Any) -> None:
            seen["mixed"].append(inputs[0][0].reshape(len(seen["x"][-1]), -1))
            seen["added"].append(output[0])

        def leave(module: Any, inputs: Any, output: Any) -> None:
            seen["out"].append((output if isinstance(output, Tensor) else output[0])[0])

        with ExitStack() as scope:
            for module in self.raw.base_model.modules():
                if find(module, self.value) is None:
                    continue
                scope.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                scope.enter_context(module.register_forward_hook(leave))
                scope.enter_context(find(module, self.value).register_forward_hook(zero))
                scope.enter_context(find(module, self.output).register_forward_hook(keep))
                hook = lambda module, inputs: seen["end"].append(inputs[0][0])  # noqa: E731
                scope.enter_context(find(module, self.second).register_forward_pre_hook(hook))
            self.copy.run()
        return seen

    def share(self, layer: Layer) -> Tensor:
        """What each position brings to the sum after attention: [i, j, d]."""
        return layer.parts.sum(0).transpose(0, 1) + torch.diag_embed(layer.x.T).permute(1, 2, 0)

    def roll(self, maps: list[Tensor]) -> Tensor:
        product = torch.eye(len(self.readout), dtype=torch.float64)
        for each in maps:
            product = each @ product
        return self.readout @ product

    @torch.no_grad()
    def value_zeroing(self) -> Tensor:
        maps = []
        for layer in self.layers:
            change = 1 - torch.cosine_similarity(layer.without, layer.out, dim=-1).T
            maps.append(change / change.sum(1, keepdim=True))
        return self.roll(maps)

    @torch.no_grad()
    def alti(self) -> Tensor:
        maps = []
        for layer in self.layers:
            share, whole = self.share(layer), layer.middle
            if not self.norm_first:
                norm = find(layer.module, self.first)
                share, whole = apply_norm(norm, share, layer.middle, eps=False), norm(layer.middle)
            near = whole.abs().sum(-1, keepdim=True) - (share - whole[:, None] + 1e-6).abs().sum(-1)
            near = near.clamp(min=0) * (share != 0).any(-1)
            maps.append(near / near.sum(1, keepdim=True))
        return self.roll(maps)

    @torch.no_grad()
    def globenc(self) -> Tensor:
        maps = []
        for layer in self.layers:
            share = self.share(layer)
            if not self.norm_first:
                share = apply_norm(find(layer.module, self.first), share, layer.middle)
                share = apply_norm(find(layer.module, self.second), share, layer.end)
            maps.append(share.norm(dim=-1))
        return self.roll(maps)

    @torch.no_grad()
    def information_flow(self) -> Tensor:
        maps = []
        for layer in self.layers:
            whole = layer.middle
            size = whole.abs().sum(-1)
            near = (size - (layer.parts - whole + 1e-6).abs().sum(-1)).clamp(min=1e-5)
            near = (near * (layer.parts != 0).any(-1)).sum(0).T
            own = (size - (layer.x - whole + 1e-6).abs().sum(-1)).clamp(min=1e-5)
            near = near + torch.diag(own)
            maps.append(near / near.sum(1, keepdim=True))
        return self.roll(maps)

    @torch.no_grad()
    def flash_trace(self) -> Tensor:
        scores = torch.zeros(len(self.readout), dtype=torch.float64)
        for layer in self.layers:
            whole = self.readout @ layer.middle
            parts = torch.einsum("i,hjid->hjd", self.readout, layer.parts)
            near = (whole.abs().sum() - (parts - whole).abs().sum(-1)).clamp(min=0)
            own = (whole.abs().sum() - (self.readout @ layer.x - whole).abs().sum()).clamp(min=0)
            scores += near.sum(0) / (near.sum() + own + 1e-12)
        return scores

    @torch.no_grad()
    def decompose(self) -> Tensor:
        """Components [L, K, d] of the last layer's output."""
        maps, parts = self.reference.attention()[0], None
        for number, layer in enumerate(self.layers):
            find_part = lambda path, layer=layer: find(layer.module, path)  # noqa: E731
            size = layer.x.shape[-1]
            output, bias = find_part(self.output), find_part(self.output)(torch.zeros(1, 1, size).double())[0, 0]
            norms = find_part(self.first), find_part(self.second)
            if type(find_part(self.back)).__name__ == "_Adapter":
                parts = self.run_on_components(number, layer, parts)
                continue
            if parts is None:
                parts = add_bias(self.share(layer), bias)
            else:
                into, own = make_linear(find_part(self.value), size)
                start = 2 * len(own) // 3 if self.value.endswith(("c_attn", "Wqkv")) else 0
                own = own[start:]
                groups = len(maps[number][0]) * (size // self.heads) // len(own)
                inner = parts
                if self.norm_first:
                    inner = add_bias(apply_norm(norms[0], parts, layer.x), getattr(norms[0], "bias", None))

                def widen(values: Tensor, groups: int = groups, number: int = number) -> Tensor:
                    heads = values.unflatten(-1, (self.heads // groups, -1)).repeat_interleave(groups, -2)
                    return torch.einsum("hij,jkhc->ikhc", maps[number][0], heads).flatten(-2)

                project, _ = make_linear(output, size)
                # Rows of attention sum to 1: the bias of the values reaches each position whole.
                reached = own.unflatten(-1, (self.heads // groups, -1)).repeat_interleave(groups, -2).flatten()
                mixed = project(widen(into(inner)[..., start:]))
                parts = add_bias(parts + mixed, bias + project(reached[None])[0])
            parts = self.feed(layer, norms, parts)
        return parts

    def feed(self, layer: Layer, norms: tuple[Any, Any], parts: Tensor) -> Tensor:
        """Components after the feed-forward of a layer."""
        norm = norms[int(self.norm_first)]
        between = add_bias(apply_norm(norm, parts, layer.middle), getattr(norm, "bias", None))
        point, size = norm(layer.middle), layer.x.shape[-1]
        config = self.raw.config
        names = ("hidden_act", "activation", "activation_function", "hidden_activation")
        act = ACT2FN[next(getattr(config, name) for name in names if isinstance(getattr(config, name, None), str))]
        into, bias = make_linear(find(layer.module, self.into), size)
        height, gate = find(layer.module, self.into)(point[None])[0], find(layer.module, "mlp.gate_proj")
        wide = into(between)
        if self.family == "modernbert":
            height, wide = height.chunk(2, -1)[0], wide.chunk(2, -1)[1]
            slope, bias = act(height), bias.chunk(2)[1]
        elif gate is not None:
            slope = act(gate(point[None])[0])
        else:
            slope = act(height) / height
        back, last = make_linear(find(layer.module, self.back), slope.shape[-1])
        fed = add_bias(back(add_bias(wide, bias) * slope[:, None]), last)
        if self.norm_first:
            return parts + fed
        return add_bias(apply_norm(norms[1], between + fed, layer.end), norms[1].bias)

    def run_on_components(self, number: int, layer: Layer, parts: Tensor | None) -> Tensor:
        """Components after a layer with a non-linear part of one's own: its held network, and the rest at its end."""
        parts = torch.diag_embed(layer.x.T).permute(1, 2, 0) if parts is None else parts
        path = next(name for name, module in self.raw.named_modules() if module is layer.module)
        directions = [lambda at, part=part: part[None] for part in (*parts.unbind(1), layer.x)]
        # ALBERT runs one layer many times.
        call = sum(each.module is layer.module for each in self.layers[:number])
        with torch.enable_grad():
            changes = self.reference.differ(
                lambda raw: raw.get_submodule(path), directions, call=call, reads_layer=True
            )
        mapped = torch.stack(changes[:-1], 1)
        return add_bias(mapped, layer.out - changes[-1])

    @torch.no_grad()
    def decompx(self) -> Tensor:
        return self.readout @ self.decompose().norm(dim=-1)

    @torch.no_grad()
    def decompx_classifier(self) -> Tensor:
        parts, layer = self.decompose(), self.layers[-1]
        point = layer.out
        if self.norm_first:
            norm = find(self.raw.base_model, NORM_FIRST[self.family])
            parts, point = add_bias(apply_norm(norm, parts, point), getattr(norm, "bias", None)), norm(point)
        parts, point = torch.einsum("i,ikd->kd", self.readout, parts), self.readout @ point
        for name in self.raw.own_head or HEADS[self.family]:
            module = find(self.raw, name)
            if module is None:
                slope = ACT2FN[name](point) / point
                parts, point = parts * slope, point * slope
            elif isinstance(module, torch.nn.LayerNorm):
                parts, point = add_bias(apply_norm(module, parts, point), module.bias), module(point)
            else:
                linear, bias = make_linear(module, len(point))
                parts, point = add_bias(linear(parts), bias), module(point)
        return parts[:, self.reference.target]
