"""Digests that identify a model's weights and its processor in a record."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from torch import nn

from exegete.data.provenance import digest as digest_of


def digest_weights(model: nn.Module) -> str:
    """A digest of up to 4,096 values of every weight, evenly spread."""
    digest = blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].double().cpu()
        digest.update(f"{name} {tuple(value.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def digest_processor(processor: Any) -> str:
    """A digest of all that a tokenizer or an image processor makes of its inputs; where texts are cut off apart."""
    if hasattr(processor, "backend_tokenizer"):
        return digest_of(get_tokenizer_definition(processor))
    return digest_of(processor.to_dict() if hasattr(processor, "to_dict") else None)


def get_tokenizer_definition(tokenizer: Any) -> dict[str, Any]:
    """All that decides how a text is cut into tokens, apart from its length."""
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: value for name, value in whole.items() if name not in ("truncation", "padding")}
