"""Sizes of models that are trained from scratch."""

from __future__ import annotations

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "small": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256},
}


def from_scratch(source: str) -> bool:
    """Whether a text means a model from scratch: the name of a size, or a configuration's file."""
    return source in SIZES or source.endswith(".json")
