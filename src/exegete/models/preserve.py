"""The user's model leaves every call as it came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

_INSTALLED = "_output_capturing_hooks_installed"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every submodule's own mode and the random state come back after it."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with unchanged_random_state():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """After the block every submodule is in the mode it was in before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def weights_fixed(model: nn.Module) -> Iterator[None]:
    """Inside the block no weight of the model asks for a gradient; after it each does as before."""
    asking = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in asking:
        weight.requires_grad = False
    try:
        yield
    finally:
        for weight in asking:
            weight.requires_grad = True


@contextmanager
def unchanged_random_state() -> Iterator[None]:
    """The random state of torch (every device in use) and NumPy as it was, whatever the block draws or seeds."""
    numpy_state = np.random.get_state()  # noqa: NPY002  (transformers' BigBird seeds the global generator)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def hooks_removed(model: nn.Module) -> Iterator[None]:
    """Takes away the hooks that transformers installs for good when it is first asked for hidden states."""
    before = [(module, set(module._forward_hooks), _INSTALLED in module.__dict__) for module in model.modules()]
    try:
        yield
    finally:
        for module, hooks, installed in before:
            for added in set(module._forward_hooks) - hooks:
                del module._forward_hooks[added]
            if not installed:
                module.__dict__.pop(_INSTALLED, None)


@contextmanager
def attention_type_for(model: PreTrainedModel, length: int) -> Iterator[None]:
    """BigBird swaps its attention modules for good when it meets a short text; here it gets the old ones back."""
    if getattr(model.config, "attention_type", None) != "block_sparse":
        yield
        return
    before = [
        (module, module.attention_type, module._modules.get("self"))
        for module in model.modules()
        if isinstance(getattr(module, "attention_type", None), str)
    ]
    try:
        if length <= (5 + 2 * model.config.num_random_blocks) * model.config.block_size:
            with unchanged_random_state():
                model.base_model.set_attention_type("original_full")
        yield
    finally:
        for module, attention_type, attention in before:
            module.attention_type = attention_type
            if attention is not None:
                module._modules["self"] = attention
