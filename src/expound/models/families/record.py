"""The record of a model family: the paths of its parts, and a small configuration for tests."""

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
"""Sizes of a model for tests, under the names that most configurations use."""


@dataclass(frozen=True, slots=True)
class Head:
    """The modules after the last layer: [dense → activation → [norm]] → output.

    Paths start at the whole model, or at its base model after `@`. `activation` is an activation's name, or the name of
    the configuration's entry with it.
    """

    output: str
    dense: str | None = None
    activation: str = ""
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """The names of a self-attention module's parts; its attention probabilities pass through `dropout`."""

    query: str
    key: str
    value: str
    dropout: str = "dropout"
    heads: str = "num_attention_heads"


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention: the projections to the values and after it, and its norm; paths start at the layer.

    `part`: the share of a fused projection that holds the values, as (index, number of parts). `hooks`: the parts of an
    attention that does not go through transformers' interface. `norm_of_output`: a norm of the attention's output,
    before the residual is added. `is_derived`: the record was derived from a pass; `columns` are the outputs of `value`
    that attention gets, one per number of every head; None: all.
    """

    value: str
    output: str
    norm: str | None
    part: tuple[int, int] = (0, 1)
    hooks: Hooks | None = None
    norm_of_output: str | None = None
    is_derived: bool = False
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A layer's feed-forward: into → activation → out, and its norm; paths start at the layer.

    With `gate` it is out(activation(gate) ⊙ into). `has_fused_gate`: the first half of `into` is the gate. `gate_flag`:
    the configuration's entry that is true if `into` is split into a gate, with `_0`, and a value, with `_1`.
    `norm_of_output`: a norm of the feed-forward's output, before the residual is added. `columns`, `gate_columns`: the
    outputs of `into` and `gate` that are meant, in a record that was derived from a pass; None: all.
    """

    into: str
    activation: str
    out: str
    norm: str | None
    gate: str | None = None
    has_fused_gate: bool = False
    gate_flag: str | None = None
    norm_of_output: str | None = None
    columns: tuple[int, ...] | None = None
    gate_columns: tuple[int, ...] | None = None

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward is a product with a gate."""
        return self.has_fused_gate or self.gate is not None

    def split_gate(self) -> FeedForward:
        """Return this feed-forward with `into` split into a value and a gate, as where `gate_flag` is true."""
        return replace(self, into=f"{self.into}_1", gate=f"{self.into}_0")


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder after an encoder: its list of layers in the base model, and the parts of each.

    `cross` is the attention to the encoder, between self-attention and feed-forward.
    """

    layers: str
    attention: Attention
    cross: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The facts that differ between families of models.

    Args:
        layers: the list of layers in the base model.
        shared: in families that run layers repeatedly, the path of the layers in each group of `layers`.
        attention: the first half of a layer.
        feed_forward: the second half of a layer.
        norm_first: norms come before attention and feed-forward, not after their residuals.
        final_norm: the base model's norm after all layers.
        decoder: the decoder's parts, if the other parts are those of an encoder before it.
        head: the head for classes.
        masked: the head for masked words.
        after_attention: the part of a layer that takes the attention's output and the residual, if the head reads only
            the first position; it and all parts after it can then be skipped at the others.
        in_float32: `norms` or `rotations`, if these are computed in float32 even with more precise weights.
        small_config: the configuration of a small model for tests.
        tokenizer: the kind of tokenizer of a small model: `bert`, `roberta` or `gpt2`; None for images.
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
    in_float32: Literal["norms", "rotations"] | None = None
    small_config: dict[str, Any]
    tokenizer: Literal["bert", "roberta", "gpt2"] | None = "bert"

    @property
    def norms(self) -> tuple[str | None, str | None]:
        """The attention's norm and the feed-forward's norm."""
        return self.attention.norm, self.feed_forward.norm

    @property
    def norms_of_outputs(self) -> tuple[str, ...]:
        """The norms of the outputs of attention and feed-forward; empty in most families."""
        after_attention, after_feed_forward = self.attention.norm_of_output, self.feed_forward.norm_of_output
        if after_attention is None or after_feed_forward is None:
            return ()
        return after_attention, after_feed_forward
