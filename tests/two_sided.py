"""Tiny random encoder-decoders, and what they compute written out from the equations: float64, one example, no padding.

The equations use no code of `expound`: weights are read by name; masks and distances are made here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor

import families
from equations import Rule, activate, apply_gate, heads, norm, scale_gradient
from expound.models.generation.encoder_decoder import EncoderDecoderModel
from families import replace_rms_norms

BART = {
    "vocab_size": 300, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 130,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": 300, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SMALL = {
    "bart": BART,
    "marian": BART | {"decoder_vocab_size": 300, "scale_embedding": True, "decoder_start_token_id": 1},
    "mbart": BART,
    "mt5": T5,
    "pegasus": BART,
    "t5": T5,
}
NAMES = list(SMALL)
GATED = {"feed_forward_proj": "gated-gelu"}


def two_sided(family: str, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> EncoderDecoderModel:
    """A random model of the family, norms and biases random too, in evaluation mode, with a tokenizer."""
    torch.manual_seed(seed)
    config = hf.AutoConfig.for_model(family, **SMALL[family] | changes)
    model = hf.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    replace_rms_norms(model.to(dtype).eval())
    return EncoderDecoderModel(model, families.tokenizer("roberta"))


shared_two_sided = functools.cache(two_sided)
"""The same model for all tests that do not change it, whose assumptions are checked once."""


@dataclass
class Run:
    """Embeddings `source` [S, d] and `target` [T, d], logits [T, V], and each attention's name and A [H, Q, K]."""

    source: Tensor
    target: Tensor
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    maps: list[tuple[str, Tensor]] = field(default_factory=list)

    @property
    def decoder(self) -> list[tuple[Tensor, Tensor]]:
        """Own and cross-attention of each of the decoder's layers."""
        own, cross = ([a for name, a in self.maps if name == kind] for kind in ("own", "cross"))
        return list(zip(own, cross, strict=True))


class Written:
    """A BART, Marian or T5 of transformers, computed from its equations."""

    def __init__(self, model: Any) -> None:
        self.config, self.kind = model.config, model.config.model_type
        self.numbers = {name: value.detach().double() for name, value in model.named_parameters()}
        self.numbers |= {name: value.double() for name, value in model.named_buffers() if "bias" in name}
        self.table = model.get_input_embeddings().weight.detach().double()

    def run(self, source: Tensor, target: Tensor, rule: Rule = "plain") -> Run:
        """The forward pass of ids [S] of the encoder and [T] of the decoder."""
        found = Run(*(self.table[ids].clone().requires_grad_() for ids in (source, target)))
        (self.t5 if self.kind == "t5" else self.bart)(found, rule)
        return found

    def linear(self, x: Tensor, name: str) -> Tensor:
        """W x + b."""
        return x @ self.numbers[f"{name}.weight"].T + self.numbers.get(f"{name}.bias", 0)

    def attend(
        self, run: Run, kind: str, x: Tensor, seen: Tensor, names: tuple[str, ...], count: int, scale: float, bias: Any,
        rule: Rule,
    ) -> Tensor:  # fmt: skip
        """The output of one attention from x [Q, d] to seen [K, d]; only a decoder's own attention is causal."""
        query, key, value, output = names
        q, k, v = (heads(self.linear(a, name), count) for a, name in ((x, query), (seen, key), (seen, value)))
        if rule in ("attn_lrp", "gim"):
            q, k, v = scale_gradient(q, 0.25), scale_gradient(k, 0.25), scale_gradient(v, 0.5)
        if rule == "cp_lrp":
            q, k = q.detach(), k.detach()
        logits = q @ k.mT * scale + bias
        hidden = torch.full(logits.shape[-2:], -math.inf, dtype=logits.dtype).triu(1) if kind == "own" else 0
        weights = (logits + hidden).softmax(-1)
        if rule == "gim":
            smooth = (logits / 2 + hidden).softmax(-1).detach()
            line = smooth * (logits - (smooth * logits).sum(-1, keepdim=True))
            weights = weights.detach() + line - line.detach()
        run.maps.append((kind, weights))
        return self.linear((weights @ v).transpose(0, 1).flatten(1), output)

    def bart(self, run: Run, rule: Rule) -> None:
        """BART and Marian: norms after residuals, learned or sine positions, with or without a norm at the start."""
        c = self.config
        scale = math.sqrt(c.d_model) if c.scale_embedding else 1.0
        states = []
        for side, words in (("encoder", run.source), ("decoder", run.target)):
            base, count = f"model.{side}", getattr(c, f"{side}_attention_heads")
            x = words * scale + self.places(base, len(words))
            if f"{base}.layernorm_embedding.weight" in self.numbers:
                x = self.layer_norm(x, f"{base}.layernorm_embedding", rule)
            for number in range(getattr(c, f"{side}_layers")):
                layer = f"{base}.layers.{number}"
                parts = [("self_attn", "own" if states else "encoder", None)]
                for part, kind, memory in [*parts, ("encoder_attn", "cross", states[0])] if states else parts:
                    names = tuple(f"{layer}.{part}.{name}_proj" for name in ("q", "k", "v", "out"))
                    seen, size = x if memory is None else memory, (c.d_model // count) ** -0.5
                    x = x + self.attend(run, kind, x, seen, names, count, size, 0.0, rule)
                    x = self.layer_norm(x, f"{layer}.{part}_layer_norm", rule)
                wide = activate(self.linear(x, f"{layer}.fc1"), c.activation_function, rule)
                x = self.layer_norm(x + self.linear(wide, f"{layer}.fc2"), f"{layer}.final_layer_norm", rule)
            states.append(x)
        run.logits = states[1] @ self.table.T + self.numbers["final_logits_bias"]

    def layer_norm(self, x: Tensor, name: str, rule: Rule) -> Tensor:
        """LayerNorm."""
        return norm(x, self.numbers, name, 1e-5, rule, centered=True)

    def places(self, base: str, length: int) -> Tensor:
        """Positions [n, d]: learned, from the third row on; or sines, then cosines."""
        if self.kind == "bart":
            return self.numbers[f"{base}.embed_positions.weight"][2 : 2 + length]
        return self.numbers[f"{base}.embed_positions.weight"][:length]

    def t5(self, run: Run, rule: Rule) -> None:
        """T5: RMSNorm first, no biases, no scale, numbers for distances added to the logits."""
        c, states = self.config, []
        for base, words in (("encoder", run.source), ("decoder", run.target)):
            x = words
            far = self.distances(base, len(x))
            for number in range(c.num_decoder_layers if states else c.num_layers):
                layer = f"{base}.block.{number}.layer"
                parts = [("SelfAttention", "own" if states else "encoder", None)]
                each = [*parts, ("EncDecAttention", "cross", states[0])] if states else parts
                for place, (part, kind, memory) in enumerate(each):
                    seen = self.rms(x, f"{layer}.{place}.layer_norm", rule)
                    names = tuple(f"{layer}.{place}.{part}.{name}" for name in "qkvo")
                    keys, bias = (seen, far) if memory is None else (memory, 0.0)
                    x = x + self.attend(run, kind, seen, keys, names, c.num_heads, 1.0, bias, rule)
                wide = f"{layer}.{len(each)}.DenseReluDense"
                x = x + self.linear(
                    self.wide(self.rms(x, f"{layer}.{len(each)}.layer_norm", rule), wide, rule), f"{wide}.wo"
                )
            states.append(self.rms(x, f"{base}.final_layer_norm", rule))
        run.logits = states[1] * c.d_model**-0.5 @ self.table.T if c.scale_decoder_outputs else states[1] @ self.table.T

    def wide(self, x: Tensor, base: str, rule: Rule) -> Tensor:
        """The wide layer, with a gate or without."""
        if self.config.is_gated_act:
            return apply_gate(self.linear(x, f"{base}.wi_0"), self.linear(x, f"{base}.wi_1"), "gelu_new", rule)
        height = self.linear(x, f"{base}.wi")
        return height * (height > 0)

    def rms(self, x: Tensor, name: str, rule: Rule) -> Tensor:
        """RMSNorm."""
        return norm(x, self.numbers, name, self.config.layer_norm_epsilon, rule, centered=False)

    def distances(self, base: str, length: int) -> Tensor:
        """[H, n, n] The first layer's numbers for how far a key is from a query."""
        table = self.numbers[f"{base}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        both = base == "encoder"
        rows = [[bucket(key - query, both) for key in range(length)] for query in range(length)]
        return table[torch.tensor(rows)].permute(2, 0, 1)


def bucket(distance: int, both: bool) -> int:
    """The number of T5's bucket, of 32 up to a distance of 128; `both`: keys may come later."""
    count = 16 if both else 32
    size = abs(distance) if both else max(-distance, 0)
    exact, first = count // 2, count if both and distance > 0 else 0
    if size < exact:
        return first + size
    return first + min(count - 1, exact + int(math.log(size / exact) / math.log(128 / exact) * (count - exact)))


def relevance(run: Run, score: Tensor, rows: list[int]) -> Tensor:
    """[S] Mean over rows of R_de, by the rules of Chefer et al. (2021b), eqs. 5 to 10, on matrices of either side."""
    slopes = torch.autograd.grad(score, [a for _, a in run.maps], retain_graph=True)
    ee, dd = (torch.eye(len(x), dtype=torch.float64) for x in (run.source, run.target))
    de = torch.zeros(len(dd), len(ee), dtype=torch.float64)
    for (kind, a), slope in zip(run.maps, slopes, strict=True):
        mean = (slope * a.detach()).clamp(min=0).mean(0)
        if kind == "encoder":
            ee = ee + mean @ ee
        elif kind == "own":
            dd, de = dd + mean @ dd, de + mean @ de
        else:
            de = de + sums_to_one(dd).T @ mean @ sums_to_one(ee)
    return de[rows].mean(0)


def sums_to_one(matrix: Tensor) -> Tensor:
    """Eqs. 8 and 9."""
    one = torch.eye(len(matrix), dtype=matrix.dtype)
    total = (matrix - one).sum(1, keepdim=True)
    return one + torch.where(total > 0, (matrix - one) / total, 0.0)


def rollout(run: Run, rows: list[int]) -> Tensor:
    """[S] Mean over rows of attention multiplied through, half of every step being the residual."""
    ee, dd = (torch.eye(len(x), dtype=torch.float64) for x in (run.source, run.target))
    de = torch.zeros(len(dd), len(ee), dtype=torch.float64)
    for kind, a in run.maps:
        mean = a.detach().mean(0)
        if kind == "encoder":
            ee = (ee + mean @ ee) / 2
        elif kind == "own":
            de = (de + mean @ de) / 2
        else:
            de = (de + mean @ ee) / 2
    return de[rows].mean(0)
