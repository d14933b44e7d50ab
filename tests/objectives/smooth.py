"""Directions in weight space, for checks of derivatives."""

from __future__ import annotations

import torch

from expound.objectives import StepContext


def along_directions(module, batch, layers=2, value="value"):
    """Return the terms as a function of steps along three random directions in the weights of three layers."""
    prefix = "explained.model.bert."
    names = [
        f"{prefix}embeddings.word_embeddings.weight",
        f"{prefix}encoder.layer.0.attention.self.query.weight",
        f"{prefix}encoder.layer.{layers - 1}.attention.self.{value}.weight",
    ]
    weights = {name: value.detach() for name, value in module.named_parameters() if name in names}
    assert len(weights) == 3
    torch.manual_seed(0)
    directions = {name: torch.randn(3, *value.shape, dtype=torch.float64) for name, value in weights.items()}

    def at(point):
        moved = {name: value + torch.tensordot(point, directions[name], 1) for name, value in weights.items()}
        return torch.func.functional_call(module, moved, (batch, StepContext()))["terms"]

    return at
