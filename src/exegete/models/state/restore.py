"""The user's model leaves every call as it came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from exegete.models.state.locks import PROCESS_LOCK

_INSTALLED = "_output_capturing_hooks_installed"


@dataclass(frozen=True)
class _RandomState:
    """The random state of a process."""

    torch: Tensor
    devices: dict[int, Tensor]
    numpy: Any

    def restore(self) -> None:
        """Puts it back."""
        torch.set_rng_state(self.torch)
        for device, state in self.devices.items():
            torch.cuda.set_rng_state(state, device)
        np.random.set_state(self.numpy)  # noqa: NPY002


@dataclass(eq=False)
class _Block:
    """A block that keeps the random state: its thread, and what is put back after it."""

    thread: int
    before: _RandomState


_guard, _inside = Lock(), list[_Block]()
"""The blocks of all threads in the order in which they began."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every submodule's own mode and the random state come back after it."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with preserve_random_state():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def keep_modes(model: nn.Module) -> Iterator[None]:
    """After the block every submodule is in the mode it was in before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def freeze_weights(model: nn.Module) -> Iterator[None]:
    """Inside the block no weight of the model asks for a gradient; after it each does, and has its own, as before."""
    before = [(weight, weight.requires_grad, weight.grad) for weight in model.parameters()]
    for weight, _, _ in before:
        weight.requires_grad = False
    try:
        yield
    finally:
        for weight, asks, gradient in before:
            weight.requires_grad, weight.grad = asks, gradient


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """The random state of torch (every device in use) and NumPy as it was, whatever the block draws or seeds.

    Blocks of several threads overlap: the last one to end puts back what the first one found.
    """
    with _guard:
        block = _Block(get_ident(), _random_state())
        _inside.append(block)
    try:
        yield
    finally:
        with _guard:
            place = _inside.index(block)
            del _inside[place]
            if all(other.thread == block.thread for other in _inside):
                block.before.restore()
            elif place == 0:
                _inside[0].before = block.before


@contextmanager
def isolate_random_state() -> Iterator[None]:
    """As `preserve_random_state`, for blocks that seed and draw: one thread of the process at a time."""
    with PROCESS_LOCK, preserve_random_state():
        before = _random_state()
        try:
            yield
        finally:
            before.restore()


def _random_state() -> _RandomState:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    on_devices = {device: torch.cuda.get_rng_state(device) for device in devices}
    return _RandomState(torch.get_rng_state(), on_devices, np.random.get_state())  # noqa: NPY002  (BigBird seeds it)


@contextmanager
def remove_added_hooks(model: nn.Module) -> Iterator[None]:
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
def choose_attention_type(model: PreTrainedModel, length: int) -> Iterator[None]:
    """BigBird swaps its attention modules for good when it meets a short text; here it gets the old ones back."""
    if getattr(model.config, "attention_type", None) != "block_sparse":
        yield
        return
    with isolate_random_state(), _attention_modules_kept(model):  # block-sparse attention seeds NumPy in every pass
        if length <= (5 + 2 * model.config.num_random_blocks) * model.config.block_size:
            model.base_model.set_attention_type("original_full")
        yield


@contextmanager
def use_full_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block BigBird attends to all positions of long texts, too, so that its attention can be explained."""
    if getattr(model.config, "attention_type", None) != "block_sparse":
        yield
        return
    with _attention_modules_kept(model):
        try:
            model.config.attention_type = "original_full"
            with isolate_random_state():  # modules that are made and get their weights from elsewhere
                model.base_model.set_attention_type("original_full")
            yield
        finally:
            model.config.attention_type = "block_sparse"


@contextmanager
def _attention_modules_kept(model: PreTrainedModel) -> Iterator[None]:
    """BigBird's own attention modules and their types are there again after the block."""
    before = [
        (module, module.attention_type, module._modules.get("self"))
        for module in model.modules()
        if isinstance(getattr(module, "attention_type", None), str)
    ]
    try:
        yield
    finally:
        for module, attention_type, attention in before:
            module.attention_type = attention_type
            if attention is not None:
                module._modules["self"] = attention
