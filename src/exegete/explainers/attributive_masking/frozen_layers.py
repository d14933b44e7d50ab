"""Recorded lower layers: their output for a batch is computed once, and only the upper layers run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.layers.architecture import get_layers


class RecordedLayer(nn.Module):
    """A replacement for a layer that returns a recorded output for any input."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any, **__: Any) -> Any:
        """Return the recorded output."""
        return self.output


def record_lower_layers(backbone: PreTrainedModel, upper: int, run: Callable[[], Any]) -> dict[nn.Module, nn.Module]:
    """Return replacements for all but the `upper` last layers, so that an encoder computes only the last ones.

    All replacements return the output that the highest of the replaced layers had in `run`.

    Args:
        backbone: an encoder; it is not changed.
        upper: number of layers that are still computed, from 0.
        run: a function that runs the backbone; called once, without a graph.

    Raises:
        ExegeteError: more layers than the encoder has, or a family whose layers share their weights.
    """
    layers = get_layers(backbone)
    # ALBERT repeats one layer: replacing the lower ones would replace all.
    if len(set(layers)) < len(layers):
        raise ExegeteError(
            f"the layers of {type(backbone).__name__} share their weights: refine all of them, without refine_layers"
        )
    if upper > len(layers):
        raise ExegeteError(f"expected refine_layers of at most {len(layers)}, the number of layers, got {upper}")
    lower = layers[: len(layers) - upper]
    if not lower:
        return {}
    outputs: list[Any] = []
    with torch.no_grad(), lower[-1].register_forward_hook(lambda *call: outputs.append(call[-1])):
        run()
    # The same output for all: only the highest one's reaches a layer that is computed.
    return dict.fromkeys(lower, RecordedLayer(outputs[0]))
