"""What is particular to image transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError


@contextmanager
def only_patches(model: PreTrainedModel, positions: Tensor) -> Iterator[None]:
    """Inside the block the encoder sees only these positions [B, K] of each picture, places unchanged."""
    embeddings = getattr(model.base_model, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        raise ExegeteError(
            f"patches of a {model.config.model_type!r} model cannot be removed: it has no module 'embeddings'; "
            "use how='mask' or 'zero'"
        )

    def chosen(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output.gather(1, positions[..., None].expand(-1, -1, output.shape[-1]))

    with embeddings.register_forward_hook(chosen):
        yield
