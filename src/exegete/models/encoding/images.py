"""Image transformers: their leading tokens, and passes over chosen patches only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError

LEADING = frozenset({"cls_token", "distillation_token", "register_tokens"})


def count_leading_tokens(model: nn.Module) -> int:
    """How many positions stand before a picture's patches: the class token's, and those of tokens like it.

    One for a model without any of them, too.
    """
    return sum(token.shape[1] for name, token in model.named_parameters() if name.rpartition(".")[2] in LEADING) or 1


@contextmanager
def select_patches(model: PreTrainedModel, positions: Tensor, length: int) -> Iterator[None]:
    """Inside the block the encoder sees only these positions [B, K] of each picture's `length`, places unchanged.

    Raises:
        ExegeteError: a model whose patches cannot be told apart.
    """
    embeddings = getattr(model.base_model, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        raise ExegeteError(
            f"patches of a {model.config.model_type!r} model cannot be removed: it has no module 'embeddings'; "
            "use how='mask' or 'zero'"
        )

    def chosen(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or output.shape[1] != length:
            raise ExegeteError(
                f"patches of a {model.config.model_type!r} model cannot be removed: its embeddings are not the "
                f"{length} positions of a picture; use how='mask' or 'zero'"
            )
        return output.gather(1, positions[..., None].expand(-1, -1, output.shape[-1]))

    with embeddings.register_forward_hook(chosen):
        yield
