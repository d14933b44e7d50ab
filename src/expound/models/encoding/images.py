"""Image transformers: their leading tokens, and passes over a selection of patches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.layers.architecture import get_base_model

LEADING = frozenset({"cls_token", "distillation_token", "register_tokens"})


def count_leading_tokens(model: nn.Module) -> int:
    """Return the number of positions before an image's patches: the class token and similar tokens."""
    return sum(token.shape[1] for name, token in model.named_parameters() if name.rpartition(".")[2] in LEADING)


@contextmanager
def select_patches(model: PreTrainedModel, positions: Tensor, length: int) -> Iterator[None]:
    """Let the encoder see only these positions inside the block; each patch keeps its position embedding.

    Args:
        model: an image transformer.
        positions: [B, K] the positions to keep.
        length: the number of positions of a whole image.

    Raises:
        ExpoundError: a model whose patches cannot be told apart.
    """
    embeddings = getattr(get_base_model(model), "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        raise ExpoundError(
            f"patches of a {model.config.model_type!r} model cannot be removed: it has no module 'embeddings'; "
            "use perturbation='mask' or 'zero'"
        )

    def select(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        # Other architectures (Swin) do not return one vector per patch here.
        if not isinstance(output, Tensor) or output.shape[1] != length:
            raise ExpoundError(
                f"patches of a {model.config.model_type!r} model cannot be removed: its embeddings are not the "
                f"{length} positions of a picture; use perturbation='mask' or 'zero'"
            )
        return output.gather(1, positions[..., None].expand(-1, -1, output.shape[-1]))

    # Hooked after the embeddings, where position embeddings are already added.
    with embeddings.register_forward_hook(select):
        yield
