"""A record of a model family: where it keeps its parts, and a small configuration to try it with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 130,
}
"""Sizes of a model for tests, under the names that most configurations have for them."""


@dataclass(frozen=True, slots=True)
class Head:
    """The modules after the last layer; paths start at the whole model, `@` stands for its base model.

    [dense → activation → [norm]] → output. `activation` is an activation's name, or that of the entry of the
    configuration that holds it.
    """

    output: str
    dense: str | None = None
    activation: str = ""
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """Where a self-attention module keeps its parts; `dropout` is what its attention probabilities go through."""

    query: str
    key: str
    value: str
    dropout: str = "dropout"
    heads: str = "num_attention_heads"


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention: the projections to the values and behind it, and its norm; paths start at the layer.

    `part`: which share of a fused projection holds the values, as (index, of how many). `projections`: what makes
    queries, keys and values, position by position, of what the layer gets. `hooks`: for attention that does not go
    through transformers' interface.
    """

    value: str
    output: str
    norm: str
    part: tuple[int, int] = (0, 1)
    projections: tuple[str, ...] = ()
    hooks: Hooks | None = None


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A layer's feed-forward: into → activation → out, and its norm; paths start at the layer.

    With `gate` the wide layer is activation(gate) ⊙ into; `has_fused_gate`: the first half of `into` is the gate;
    `gate_flag`: the configuration's entry that says whether there are a gate, `into` with `_0`, and a value, with `_1`.
    """

    into: str
    activation: str
    out: str
    norm: str
    gate: str | None = None
    has_fused_gate: bool = False
    gate_flag: str | None = None

    @property
    def is_gated(self) -> bool:
        """Whether the wide layer is a product with a gate."""
        return self.has_fused_gate or self.gate is not None

    def split_gate(self) -> FeedForward:
        """As it is where `gate_flag` says that there is a gate."""
        return replace(self, into=f"{self.into}_1", gate=f"{self.into}_0")


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder behind an encoder: its list of layers in the base model, and the parts of each.

    `cross` is the attention to the encoder, between the layer's own and its feed-forward.
    """

    layers: str
    attention: Attention
    cross: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The facts about the models of a family that are not the same in all families.

    Args:
        layers: the list of layers in the base model; `shared`: the path, in each of them, of the layers that are run
            again and again.
        attention: the first half of a layer.
        feed_forward: the second half of a layer.
        norm_first: norms stand before what they belong to, not behind its residual.
        final_norm: the base model's norm behind all layers.
        decoder: the decoder's parts where the rest are an encoder's that stands before it.
        head: the head for classes; `masked`: the one for masked words.
        after_attention: the part of a layer that takes the attention's output and the residual, if the head reads the
            first position alone; all after it can then be left out elsewhere.
        weighs_positions: attention adds a mask [B, 1, L, L] of numbers as it is, so that positions can fade.
        in_float32: `norms` or `rotations`, where these are computed in float32 even if the weights are more precise.
        small: the configuration of a small model for tests.
        tokenizer: the kind of tokenizer that a small model takes: `bert`, `roberta` or `gpt2`; None: it reads images.
    """

    layers: str
    attention: Attention
    feed_forward: FeedForward
    head: Head
    masked: Head | None = None
    norm_first: bool = False
    final_norm: str | None = None
    decoder: Decoder | None = None
    shared: str | None = None
    after_attention: str | None = None
    accepts_pairwise_mask: bool = False
    in_float32: Literal["norms", "rotations"] | None = None
    small_config: dict[str, Any]
    tokenizer: Literal["bert", "roberta", "gpt2"] | None = "bert"

    @property
    def norms(self) -> tuple[str, str]:
        """The attention's norm and the feed-forward's."""
        return self.attention.norm, self.feed_forward.norm
