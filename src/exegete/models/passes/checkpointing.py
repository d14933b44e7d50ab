"""Gradient checkpointing, where the user has set it on the model, for passes of explanations, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from exegete.models.passes.capture import Capture


@contextmanager
def enable_checkpointing(model: PreTrainedModel, capture: Capture) -> Iterator[None]:
    """Inside the block layers keep what enters them alone, and run again when a gradient goes back through them.

    That is so after `model.gradient_checkpointing_enable()`, which transformers heeds in training mode alone, in
    evaluation mode for all layers but the last, from which passes leave out what no answer needs. Where a pass looks
    into attention, is differentiated twice, or swaps BigBird's attention, layers keep everything: run again, they would
    compute something else.
    """
    sparse = getattr(model.config, "attention_type", None) == "block_sparse"
    chosen: list[nn.Module] = []
    if torch.is_grad_enabled() and not (capture.in_attention or capture.differentiable_twice or sparse):
        found = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)][:-1]
        chosen = [each for each in found if each.gradient_checkpointing and not each.training]
    before = [(layer, layer.__dict__.get("forward")) for layer in chosen]
    for layer in chosen:
        layer.forward = partial(_again, layer.forward)
    try:
        yield
    finally:
        for layer, own in before:
            if own is None:
                del layer.__dict__["forward"]
            else:
                layer.forward = own


def _again(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The layer's answer; without a graph, or where it fills a cache, as it is."""
    if not torch.is_grad_enabled() or named.get("past_key_values") is not None:
        return forward(*args, **named)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **named)
