"""The lower layers of an encoder as known: what they say of a batch is computed once, and the rest runs on that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.layers.architecture import get_layers


class RecordedLayer(nn.Module):
    """Stands where a layer stood, and gives one answer to everything."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: Any, **__: Any) -> Any:
        """The recorded answer of the layer."""
        return self.answer


def record_lower_layers(backbone: PreTrainedModel, upper: int, run: Callable[[], Any]) -> dict[nn.Module, nn.Module]:
    """Stand-ins for the layers under the `upper` last ones, so that an encoder computes the last ones alone.

    Every one of them answers what the last of them answered in `run`; what the others say is looked at by none.

    Args:
        backbone: an encoder; it stays as it is.
        upper: how many layers are left to compute; 0: none.
        run: a pass through the backbone, which is done without a graph.

    Raises:
        ExegeteError: more layers than there are, or a family whose layers share their weights.
    """
    found = get_layers(backbone)
    if len(set(found)) < len(found):
        raise ExegeteError(f"the layers of {type(backbone).__name__} are one: refine all of it (no refine_layers)")
    if upper > len(found):
        raise ExegeteError(f"expected refine_layers of at most {len(found)}, as many as there are, got {upper}")
    lower = found[: len(found) - upper]
    if not lower:
        return {}
    answers: list[Any] = []
    with torch.no_grad(), lower[-1].register_forward_hook(lambda *call: answers.append(call[-1])):
        run()
    return dict.fromkeys(lower, RecordedLayer(answers[0]))
