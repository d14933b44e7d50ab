"""Digests that identify a model's weights and its tokenizer or image processor."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from torch import nn

from expound.data.provenance import digest as digest_of


def digest_weights(model: nn.Module) -> str:
    """Return a digest of up to 4,096 evenly spread values of every weight."""
    # A sample, because hashing all weights of a large model takes longer than explaining a text.
    digest = blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].double().cpu()
        digest.update(f"{name} {tuple(value.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def digest_processor(processor: Any) -> str:
    """Return a digest of a tokenizer's or image processor's settings, truncation and padding left out."""
    if hasattr(processor, "backend_tokenizer"):
        return digest_of(get_tokenizer_definition(processor))
    return digest_of(processor.to_dict() if hasattr(processor, "to_dict") else None)


def get_tokenizer_definition(tokenizer: Any) -> dict[str, Any]:
    """Return all settings that decide how a text is tokenized, without its length."""
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    # Fast tokenizers keep the truncation and padding of their latest call.
    return {name: value for name, value in whole.items() if name not in ("truncation", "padding")}
