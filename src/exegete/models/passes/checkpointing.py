"""Gradient checkpointing during explanations, if the user has enabled it on the model."""

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

from exegete.models.outputs import Capture


def is_checkpointed(model: nn.Module) -> bool:
    """Return whether the user has enabled gradient checkpointing in a layer."""
    # transformers' own property has another name in each version, and warns under the old one.
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@contextmanager
def enable_checkpointing(model: PreTrainedModel, capture: Capture) -> Iterator[None]:
    """Let layers store only their inputs inside the block, and run again when a gradient passes through them.

    This extends `model.gradient_checkpointing_enable()`, which transformers obeys in training mode only, to evaluation
    mode. It has no effect on passes that record attention, are differentiated twice, or swap BigBird's attention:
    run again, their layers would compute something else.
    """
    is_sparse = getattr(model.config, "attention_type", None) == "block_sparse"
    chosen: list[nn.Module] = []
    if not (capture.needs_own_attention or is_sparse):
        # Not the last layer: `skip_unread_positions` changes it for the time of the forward pass only.
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)][:-1]
        chosen = [layer for layer in layers if layer.gradient_checkpointing and not layer.training]
    before = [(layer, layer.__dict__.get("forward")) for layer in chosen]
    for layer in chosen:
        layer.forward = partial(_run_checkpointed, layer.forward)
    try:
        yield
    finally:
        for layer, own in before:
            if own is None:
                del layer.__dict__["forward"]
            else:
                # Accelerate's hooks also replace `forward` on the instance.
                layer.forward = own


def _run_checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # A second run would add its keys and values to the cache once more.
    if not torch.is_grad_enabled() or kwargs.get("past_key_values") is not None:
        return forward(*args, **kwargs)
    # In evaluation mode nothing is drawn, so the random state need not be saved.
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
