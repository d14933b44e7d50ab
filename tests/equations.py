"""Small transformers and explanations of them written out from their equations: float64, one text, loops over parts.

No code of `expound` is used: weights are read by name; masks, rotations and grouped heads are made here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Rule = Literal["plain", "attn_lrp", "cp_lrp", "gim"]
ACTIVATIONS = {
    "gelu": nn.functional.gelu,
    "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu,
}


@dataclass
class Layer:
    """Parts of a layer: input x [L, d], A [H, L, L], heads' vectors W_O v [H, L, d], x + Σ A W_O v (+ b_O) [L, d]."""

    x: Tensor
    attention: Tensor
    vectors: Tensor
    middle: Tensor


@dataclass
class Run:
    """Logits [L, V] of a language model or [C] of a classifier, from embeddings [L, d] that gradients are taken at."""

    embeddings: Tensor
    logits: Tensor
    layers: list[Layer]


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x, with `factor` times its derivative."""
    return x.detach() + factor * (x - x.detach())


def norm(x: Tensor, numbers: dict[str, Tensor], name: str, eps: float, rule: Rule, *, centered: bool) -> Tensor:
    """LayerNorm or RMSNorm; its scale is a constant by every rule but `plain`."""
    x = x - x.mean(-1, keepdim=True) if centered else x
    scale = 1 / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    scale = scale if rule == "plain" else scale.detach()
    return x * scale * numbers[f"{name}.weight"] + numbers.get(f"{name}.bias", 0)


def activate(x: Tensor, name: str, rule: Rule) -> Tensor:
    """f(x); by relevance rules x times the slope f(x)/x as a constant."""
    answer = torch.tanh(x) if name == "tanh" else ACTIVATIONS[name](x)
    return x * (answer / x).detach() if rule in ("attn_lrp", "cp_lrp") else answer


def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """A [H, L, L] and A v of heads [H, L, d_h]."""
    if rule in ("attn_lrp", "gim"):
        q, k, v = scale_gradient(q, 0.25), scale_gradient(k, 0.25), scale_gradient(v, 0.5)
    if rule == "cp_lrp":
        q, k = q.detach(), k.detach()
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    weights = logits.masked_fill(~allowed, -math.inf).softmax(-1)
    if rule == "gim":
        smooth = (logits / 2).masked_fill(~allowed, -math.inf).softmax(-1).detach()
        line = smooth * (logits - (smooth * logits).sum(-1, keepdim=True))
        weights = weights.detach() + line - line.detach()
    return weights, weights @ v


def heads(x: Tensor, count: int, repeated: int = 1) -> Tensor:
    """[L, H·d_h] → [H, L, d_h], each head as often as queries share it, side by side."""
    return x.unflatten(-1, (count, -1)).transpose(0, 1).repeat_interleave(repeated, 0)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary positions on [H, L, d_h]; angles in float32, as in transformers."""
    size = x.shape[-1]
    slow = 1 / theta ** (torch.arange(0, size, 2).float() / size)
    angles = torch.arange(x.shape[1]).float()[:, None] * slow
    cosine, sine = (torch.cat([f, f], -1).to(x) for f in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Written:
    """A model of transformers, computed from its equations by `run(ids, rule)`."""

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.numbers = {name: value.detach().double() for name, value in model.named_parameters()}
        self.table = model.get_input_embeddings().weight.detach().double()
        self.kind = model.config.model_type

    def run(self, ids: Tensor, rule: Rule = "plain") -> Run:
        """The forward pass of a text's ids [L]."""
        embeddings = self.table[ids].clone().requires_grad_()
        written = {"gpt2": self.gpt2, "bert": self.bert, "roberta": self.bert}.get(self.kind, self.llama)
        return written(embeddings, rule)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """W x + b."""
        return x @ self.numbers[f"{name}.weight"].T + self.numbers.get(f"{name}.bias", 0)

    def window(self, number: int, length: int) -> Tensor:
        """[L, L] The positions that each position attends to in a decoder's layer."""
        distance = torch.arange(length)[:, None] - torch.arange(length)
        kinds = getattr(self.config, "layer_types", None)
        size = getattr(self.config, "sliding_window", None)
        near = size is not None and (kinds is None or kinds[number] == "sliding_attention")
        return (distance >= 0) & (distance < (size if near else length))

    def llama(self, x: Tensor, rule: Rule) -> Run:
        """Llama, Mistral, Qwen2: RMSNorm first, rotations, grouped heads, gated feed-forward."""
        c, start, found = self.config, x, []
        groups = c.num_attention_heads // c.num_key_value_heads
        for number in range(c.num_hidden_layers):
            base = f"model.layers.{number}"
            seen = norm(x, self.numbers, f"{base}.input_layernorm", c.rms_norm_eps, rule, centered=False)
            q, k, v = (self.linear(seen, f"{base}.self_attn.{part}_proj") for part in "qkv")
            theta = c.rope_parameters["rope_theta"]
            q = rotate(heads(q, c.num_attention_heads), theta)
            k = rotate(heads(k, c.num_key_value_heads, groups), theta)
            v = heads(v, c.num_key_value_heads, groups)
            weights, mixed = attend(q, k, v, self.window(number, len(x)), rule)
            middle = x + self.linear(mixed.transpose(0, 1).flatten(1), f"{base}.self_attn.o_proj")
            found.append(self.layer(x, weights, v, f"{base}.self_attn.o_proj", middle))
            seen = norm(middle, self.numbers, f"{base}.post_attention_layernorm", c.rms_norm_eps, rule, centered=False)
            gate, up = (self.linear(seen, f"{base}.mlp.{part}_proj") for part in ("gate", "up"))
            x = middle + self.linear(apply_gate(gate, up, c.hidden_act, rule), f"{base}.mlp.down_proj")
        last = norm(x, self.numbers, "model.norm", c.rms_norm_eps, rule, centered=False)
        return Run(start, self.linear(last, "lm_head"), found)

    def layer(self, x: Tensor, weights: Tensor, v: Tensor, output: str, middle: Tensor) -> Layer:
        """The parts of a layer that explanations use; `output`: the projection behind the heads."""
        columns = self.numbers[f"{output}.weight"].T.unflatten(0, (len(v), -1))
        return Layer(x, weights, torch.stack([v[h] @ columns[h] for h in range(len(v))]), middle)

    def gpt2(self, embeddings: Tensor, rule: Rule) -> Run:
        """GPT-2: LayerNorm first, learned positions; weights stored [in, out]."""
        c, found = self.config, []
        numbers = {
            name: value.T if ".c_" in name and value.ndim == 2 else value for name, value in self.numbers.items()
        }
        self.numbers, kept = numbers, self.numbers
        x = embeddings + numbers["transformer.wpe.weight"][: len(embeddings)]
        for number in range(c.n_layer):
            base = f"transformer.h.{number}"
            seen = norm(x, numbers, f"{base}.ln_1", c.layer_norm_epsilon, rule, centered=True)
            q, k, v = (heads(part, c.n_head) for part in self.linear(seen, f"{base}.attn.c_attn").chunk(3, -1))
            weights, mixed = attend(q, k, v, self.window(number, len(x)), rule)
            middle = x + self.linear(mixed.transpose(0, 1).flatten(1), f"{base}.attn.c_proj")
            found.append(self.layer(x, weights, v, f"{base}.attn.c_proj", middle))
            seen = norm(middle, numbers, f"{base}.ln_2", c.layer_norm_epsilon, rule, centered=True)
            wide = activate(self.linear(seen, f"{base}.mlp.c_fc"), c.activation_function, rule)
            x = middle + self.linear(wide, f"{base}.mlp.c_proj")
        last = norm(x, numbers, "transformer.ln_f", c.layer_norm_epsilon, rule, centered=True)
        self.numbers = kept
        return Run(embeddings, last @ self.table.T, found)

    def bert(self, embeddings: Tensor, rule: Rule) -> Run:
        """BERT and RoBERTa with a classifier on the first position: LayerNorm behind residuals."""
        c, found, base = self.config, [], self.kind
        first = c.pad_token_id + 1 if base == "roberta" else 0
        places = self.numbers[f"{base}.embeddings.position_embeddings.weight"][first : first + len(embeddings)]
        x = embeddings + places + self.numbers[f"{base}.embeddings.token_type_embeddings.weight"][0]
        x = norm(x, self.numbers, f"{base}.embeddings.LayerNorm", c.layer_norm_eps, rule, centered=True)
        everywhere = torch.ones(len(x), len(x), dtype=torch.bool)
        for number in range(c.num_hidden_layers):
            part = f"{base}.encoder.layer.{number}"
            q, k, v = (
                heads(self.linear(x, f"{part}.attention.self.{name}"), c.num_attention_heads)
                for name in ("query", "key", "value")
            )
            weights, mixed = attend(q, k, v, everywhere, rule)
            output = f"{part}.attention.output"
            middle = x + self.linear(mixed.transpose(0, 1).flatten(1), f"{output}.dense")
            found.append(self.layer(x, weights, v, f"{output}.dense", middle))
            seen = norm(middle, self.numbers, f"{output}.LayerNorm", c.layer_norm_eps, rule, centered=True)
            wide = activate(self.linear(seen, f"{part}.intermediate.dense"), c.hidden_act, rule)
            x = seen + self.linear(wide, f"{part}.output.dense")
            x = norm(x, self.numbers, f"{part}.output.LayerNorm", c.layer_norm_eps, rule, centered=True)
        dense, out = (
            ("bert.pooler.dense", "classifier") if base == "bert" else ("classifier.dense", "classifier.out_proj")
        )
        return Run(embeddings, self.linear(activate(self.linear(x[0], dense), "tanh", rule), out), found)


def apply_gate(gate: Tensor, up: Tensor, activation: str, rule: Rule) -> Tensor:
    """f(gate) ⊙ up."""
    if rule == "cp_lrp":
        return ACTIVATIONS[activation](gate).detach() * up
    if rule == "gim":
        gate, up = scale_gradient(gate, 0.5), scale_gradient(up, 0.5)
    product = activate(gate, activation, rule) * up
    return scale_gradient(product, 0.5) if rule == "attn_lrp" else product


def times_gradient(run: Run, score: Tensor, base: Tensor | float = 0.0) -> Tensor:
    """Σ_d (E − base) ⊙ ∂score/∂E: [L]."""
    (slope,) = torch.autograd.grad(score, run.embeddings)
    return (slope * (run.embeddings.detach() - base)).sum(-1)


def chefer(run: Run, score: Tensor, rows: list[int]) -> Tensor:
    """Mean over `rows` of R, each without its own entry; R ← R + Ā R layer by layer."""
    slopes = torch.autograd.grad(score, [layer.attention for layer in run.layers])
    relevance = torch.eye(len(run.embeddings), dtype=torch.float64)
    for layer, slope in zip(run.layers, slopes, strict=True):
        relevance = relevance + (slope * layer.attention.detach()).clamp(min=0).mean(0) @ relevance
    relevance.fill_diagonal_(0)
    return relevance[rows].mean(0)


def nearness(part: Tensor, whole: Tensor, shift: float = 0.0, floor: float = 0.0) -> float:
    """max(floor, ‖whole‖₁ − ‖part − whole + shift‖₁)."""
    return max(floor, float(whole.abs().sum() - (part - whole + shift).abs().sum()))


@torch.no_grad()
def flow_rollout(run: Run, rows: list[int]) -> Tensor:
    """The mean of `rows` of C_N ··· C_1, C_ij the share of position j in the stream at i, residual on the diagonal."""
    length = len(run.embeddings)
    product = torch.eye(length, dtype=torch.float64)
    for layer in run.layers:
        shares = torch.zeros(length, length, dtype=torch.float64)
        for i in range(length):
            shares[i, i] = nearness(layer.x[i], layer.middle[i], 1e-6, 1e-5)
            for head, j in torch.nonzero(layer.attention[:, i]).tolist():
                part = layer.attention[head, i, j] * layer.vectors[head, j]
                shares[i, j] += nearness(part, layer.middle[i], 1e-6, 1e-5)
        product = shares / shares.sum(1, keepdim=True) @ product
    return product[rows].mean(0)


@torch.no_grad()
def flash(run: Run, weights: Tensor) -> Tensor:
    """Σ over layers of what each position gives to Σ_i weights_i stream_i: [L]."""
    scores = torch.zeros(len(weights), dtype=torch.float64)
    for layer in run.layers:
        whole = weights @ layer.middle
        near = torch.zeros(len(layer.attention), len(weights), dtype=torch.float64)
        for head in range(len(near)):
            for j in range(len(weights)):
                near[head, j] = nearness((weights @ layer.attention[head, :, j]) * layer.vectors[head, j], whole)
        scores += near.sum(0) / (near.sum() + nearness(weights @ layer.x, whole) + 1e-12)
    return scores


@torch.no_grad()
def flash_hops(run: Run, span: Tensor, reasoning: Tensor, hops: int) -> Tensor:
    """The span's scores and what falls on the reasoning [L] (bool) traced on from the positions that predict it."""
    current = total = flash(run, span)
    ratio = 1.0
    for _ in range(hops):
        on = torch.where(reasoning, current, 0.0)
        ratio *= float(on.sum() / current.sum())
        sinks = torch.zeros_like(on)
        for place in torch.nonzero(reasoning).flatten().tolist():
            sinks[place - 1] = on[place] / on.sum()
        current = flash(run, sinks)
        total = total + ratio * current
    return total


def lasso(masks: Tensor, values: Tensor, alpha: float) -> tuple[Tensor, float]:
    """Weights and intercept of (1/2M) ‖y − Zw − b‖² + α ‖w‖₁ on standardized masks, taken back, by coordinates."""
    masks = masks.double()
    mean, deviation = masks.mean(0), masks.std(0, correction=0)
    deviation = torch.where(deviation == 0, 1.0, deviation)
    z = (masks - mean) / deviation
    products, pulls = (z.T @ z / len(z)).tolist(), (z.T @ (values - values.mean()) / len(z)).tolist()
    w, moved = [0.0] * len(pulls), 1.0
    while moved > 1e-13:
        moved = 0.0
        for j in [j for j in range(len(w)) if products[j][j] > 0]:
            pull = pulls[j] - sum(products[j][i] * w[i] for i in range(len(w)) if i != j)
            new = math.copysign(max(abs(pull) - alpha, 0.0), pull) / products[j][j]
            moved, w[j] = max(moved, abs(new - w[j])), new
    weights = torch.tensor(w, dtype=torch.float64) / deviation
    return weights, float(values.mean() - weights @ mean)
