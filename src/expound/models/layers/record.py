"""The record of a model's layers and head: the paths of their parts, as `derive_record` finds them in one pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention: the projections to the values and after it, and its norm; paths start at the layer.

    `norm_of_output`: a norm of the attention's output, before the residual is added. `columns`: the outputs of `value`
    that attention gets, one per number of every head; None: all.
    """

    value: str
    output: str
    norm: str | None
    norm_of_output: str | None = None
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A layer's feed-forward: into → activation → out, and its norm; paths start at the layer.

    With `gate` it is out(activation(gate) ⊙ into). `norm_of_output`: a norm of the feed-forward's output, before the
    residual is added. `columns`, `gate_columns`: the outputs of `into` and `gate` that are meant; None: all.
    """

    into: str
    activation: str
    out: str
    norm: str | None
    gate: str | None = None
    norm_of_output: str | None = None
    columns: tuple[int, ...] | None = None
    gate_columns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The modules after the last layer: [dense → activation → [norm]] → output; paths start at the whole model."""

    output: str
    dense: str | None = None
    activation: str = ""
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The parts of a model, whose layers are all alike.

    Args:
        attention: the first half of a layer.
        feed_forward: the second half of a layer.
        norm_first: norms come before attention and feed-forward, not after their residuals.
        final_norm: the norm after all layers; its path starts at the whole model.
        head: the head.
    """

    attention: Attention
    feed_forward: FeedForward
    norm_first: bool
    final_norm: str | None
    head: Head

    @property
    def norms(self) -> tuple[str | None, str | None]:
        """The attention's norm and the feed-forward's norm."""
        return self.attention.norm, self.feed_forward.norm

    @property
    def norms_of_outputs(self) -> tuple[str, ...]:
        """The norms of the outputs of attention and feed-forward; empty in most models."""
        after_attention, after_feed_forward = self.attention.norm_of_output, self.feed_forward.norm_of_output
        if after_attention is None or after_feed_forward is None:
            return ()
        return after_attention, after_feed_forward
