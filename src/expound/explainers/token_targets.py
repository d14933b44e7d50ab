"""One backward pass through a large vocabulary for all tokens of a response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from expound.models import Batch, ExplainedModel
from expound.models.batch import find_predicting_columns, find_response_positions, require_response
from expound.models.probe import get_tolerance


@contextmanager
def capture_head_input(model: ExplainedModel) -> Iterator[list[Tensor]]:
    """Collect the input of a language model's head in the passes inside the block; empty for other models."""
    states: list[Tensor] = []
    head = model.model.get_output_embeddings() if model.task.is_generated and not model.is_encoder_decoder else None
    if not isinstance(head, nn.Module):
        yield states
        return

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        states.extend(inputs[:1])

    with head.register_forward_pre_hook(keep):
        yield states


def split_by_target(
    model: ExplainedModel, batch: Batch, scores: Sequence[Tensor], targets: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor] | None:
    """Return the gradient of each score [B] at the input of the head, from one backward pass through the vocabulary.

    Each token of a response is read at its own position, so the gradient of the sum of all scores has those of targets
    without a token in common side by side. None if targets overlap, or if the first target's own gradient is not its
    part of the whole.
    """
    if len(states) != 1 or len(scores) < 2:
        return None
    positions, _ = find_response_positions(require_response(batch))
    columns, index = find_predicting_columns(require_response(batch)), positions - 1
    if states[0].shape[1] == len(columns):
        index = torch.searchsorted(columns, index)
    step, masks = torch.arange(positions.shape[1], device=index.device), []
    for target in targets:
        inside = (step >= target[:, :1]) & (step < target[:, 1:])
        mask = torch.zeros(states[0].shape[:2], dtype=states[0].dtype, device=index.device)
        masks.append(mask.scatter_add(1, index, inside.to(mask))[..., None])
    if (torch.stack(masks).sum(0) > 1).any():
        return None
    total = torch.stack([score.sum() for score in scores]).sum()
    (whole,) = torch.autograd.grad(total, states[0], retain_graph=True)
    (first,) = torch.autograd.grad(scores[0].sum(), states[0], retain_graph=True)
    if float((first - whole * masks[0]).abs().max()) > get_tolerance(model) * float(first.abs().max()):
        return None
    return [whole * mask for mask in masks]
