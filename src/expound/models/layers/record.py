"""The record of a model's layers and head: the paths of their parts, as `derive_record` finds them in one pass."""

from __future__ import annotations

from dataclasses import dataclass


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
