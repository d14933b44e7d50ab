"""What stands for a model's weights in a record."""

from __future__ import annotations

from hashlib import blake2b

from torch import nn


def weights_digest(model: nn.Module) -> str:
    """A digest of up to 4,096 values of every weight, evenly spread."""
    digest = blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].double().cpu()
        digest.update(f"{name} {tuple(value.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()
