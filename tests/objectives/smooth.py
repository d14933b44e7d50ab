"""What checks of derivatives need: norms that can be differentiated often enough, and directions in weight space."""

from __future__ import annotations

import torch
from torch import nn

from exegete.objectives import StepContext


class Norm(nn.Module):
    """torch's own LayerNorm has a wrong third derivative, which the second one of a gradient's loss needs."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() + self.bias


def plain_norms(module: nn.Module) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, Norm(child))


def along_directions(module, batch, layers=2, value="value"):
    """The terms as a function of steps along three random directions in the weights of three layers."""
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
