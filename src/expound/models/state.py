"""Locks, and blocks after which the user's model and the random state are as they were before.

An explanation changes the model for the time of a pass (mode, hooks, attention). So each model has one lock: threads
that use the same model take turns, and different models do not wait for each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from expound.errors import ExpoundError
from expound.models.batch import Capture

P = ParamSpec("P")
R = TypeVar("R")
Lock = AbstractContextManager[Any]

PROCESS_LOCK: Lock = threading.RLock()
"""Guards what exists once per process: global random generators, kernel switches, warning filters."""
CACHE_ARGUMENTS = ("cache", "past_key_values")
"""Names of the argument for cached keys and values; transformers 5.24 renamed the second."""
_guard, _locks = threading.Lock(), dict[int, Lock]()
_INSTALLED = "_output_capturing_hooks_installed"


class Lockable(Protocol):
    """An object with a lock of its own."""

    def lock(self) -> Lock:
        """Return the lock, to be held while the object is used."""


def get_lock(thing: Any) -> Lock:
    """Return the re-entrant lock of an object, created at the first request and deleted with the object.

    The lock is not stored on the object, which can therefore still be copied, pickled and compared.
    """
    with _guard:
        if id(thing) not in _locks:
            _locks[id(thing)] = threading.RLock()
            # None takes no weak reference; its lock is never deleted.
            with suppress(TypeError):
                weakref.finalize(thing, _locks.pop, id(thing), None).atexit = False
        return _locks[id(thing)]


S = TypeVar("S", bound=Lockable)


def with_lock(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method so that it holds its object's lock while it runs."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock():
            return method(self, *args, **kwargs)

    return run


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside the block; afterwards each submodule's mode and the random state are restored."""
    # `model.train()` afterwards would also switch on submodules that the user keeps in evaluation mode.
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
    """Restore the training mode of every submodule after the block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def freeze_weights(model: nn.Module) -> Iterator[None]:
    """Set `requires_grad=False` for all weights inside the block; restore it and their gradients afterwards."""
    # Weights that were computed, as in `torch.func.functional_call`, cannot be fixed.
    before = [(weight, weight.requires_grad, weight.grad) for weight in model.parameters() if weight.is_leaf]
    for weight, _, _ in before:
        weight.requires_grad = False
    try:
        yield
    finally:
        for weight, requires_grad, gradient in before:
            weight.requires_grad, weight.grad = requires_grad, gradient


@dataclass(frozen=True)
class _RandomState:
    """The state of torch's generators, one per CUDA device in use, and of NumPy's global generator."""

    torch: Tensor
    devices: dict[int, Tensor]
    numpy: Any

    @classmethod
    def read(cls) -> _RandomState:
        # Asking for the state of a CUDA generator would initialize CUDA, which takes seconds and breaks forks.
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        on_devices = {device: torch.cuda.get_rng_state(device) for device in devices}
        # transformers' BigBird seeds NumPy's global generator in every pass.
        return cls(torch.get_rng_state(), on_devices, np.random.get_state())  # noqa: NPY002

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        for device, state in self.devices.items():
            torch.cuda.set_rng_state(state, device)
        np.random.set_state(self.numpy)  # noqa: NPY002


@dataclass(eq=False)
class _Block:
    """An active `preserve_random_state` block: its thread, and the random state to restore."""

    thread: int
    before: _RandomState


_blocks = list[_Block]()
"""The active blocks of all threads, oldest first."""


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the random state of torch and NumPy after the block.

    Blocks of several threads may overlap; then the last block to end restores the state that the first one found.
    """
    with _guard:
        block = _Block(threading.get_ident(), _RandomState.read())
        _blocks.append(block)
    try:
        yield
    finally:
        with _guard:
            place = _blocks.index(block)
            del _blocks[place]
            if all(other.thread == block.thread for other in _blocks):
                block.before.restore()
            elif place == 0:
                # Another thread is still drawing: hand the original state to the block that is now the oldest.
                _blocks[0].before = block.before


@contextmanager
def isolate_random_state() -> Iterator[None]:
    """Preserve the random state around a block that seeds generators, one thread of the process at a time."""
    with PROCESS_LOCK, preserve_random_state():
        before = _RandomState.read()
        try:
            yield
        finally:
            # Restored here too, because `preserve_random_state` does not restore while other threads' blocks run.
            before.restore()


@contextmanager
def avoid_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Compute the attention of passes on a GPU without cuDNN's kernel, whose gradients can be NaN.

    Since torch 2.11, its backward pass on H100 and H200 gives NaN for masked inputs with a length of 64 modulo 128
    (pytorch/pytorch#196678).
    """
    if device.type != "cuda":
        yield
        return
    # The choice of kernel holds for the whole process.
    with PROCESS_LOCK:
        was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            yield
        finally:
            torch.backends.cuda.enable_cudnn_sdp(was_enabled)


@contextmanager
def remove_added_hooks(model: nn.Module) -> Iterator[None]:
    """Remove the hooks that transformers adds permanently at the first request for hidden states."""
    before = [(module, set(module._forward_hooks), _INSTALLED in module.__dict__) for module in model.modules()]
    try:
        yield
    finally:
        for module, hooks, installed in before:
            for added in set(module._forward_hooks) - hooks:
                del module._forward_hooks[added]
            # transformers checks this flag; if it stayed, hooks would never be installed again.
            if not installed:
                module.__dict__.pop(_INSTALLED, None)


@contextmanager
def choose_attention_type(model: PreTrainedModel, length: int) -> Iterator[None]:
    """Use full attention for texts too short for BigBird's blocks, and restore its modules after the block.

    BigBird would make this switch itself, but permanently: longer texts afterwards would get full attention too.
    """
    if getattr(model.config, "attention_type", None) != "block_sparse":
        yield
        return
    if model.config.model_type == "bigbird_pegasus":
        raise ExpoundError("BigBirdPegasus changes itself for short texts: load it with attention_type='original_full'")
    # Block-sparse attention seeds NumPy's global generator in every pass.
    with isolate_random_state(), _restore_attention_modules(model):
        # The threshold is transformers' own, from BigBirdModel.forward.
        if length <= (5 + 2 * model.config.num_random_blocks) * model.config.block_size:
            _find_big_bird(model).set_attention_type("original_full")
        yield


def _find_big_bird(model: nn.Module) -> Any:
    """Return the encoder whose attention can be set, also from inside a PEFT wrapper."""
    return next(module for module in model.modules() if hasattr(module, "set_attention_type"))


@contextmanager
def use_full_attention(model: PreTrainedModel) -> Iterator[None]:
    """Give BigBird full attention for texts of any length inside the block, so that its attention can be explained."""
    if getattr(model.config, "attention_type", None) != "block_sparse":
        yield
        return
    with _restore_attention_modules(model):
        try:
            model.config.attention_type = "original_full"
            # The new attention modules draw initial weights before the old weights are copied into them.
            with isolate_random_state():
                _find_big_bird(model).set_attention_type("original_full")
            yield
        finally:
            model.config.attention_type = "block_sparse"


@contextmanager
def _restore_attention_modules(model: PreTrainedModel) -> Iterator[None]:
    """Restore BigBird's attention modules and their types after the block."""
    before = []
    for module in model.modules():
        if isinstance(getattr(module, "attention_type", None), str):
            before.append((module, module.attention_type, module._modules.get("self")))
    try:
        yield
    finally:
        for module, attention_type, attention in before:
            module.attention_type = attention_type
            if attention is not None:
                module._modules["self"] = attention


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
    with ExitStack() as scope:
        for layer in chosen:
            scope.enter_context(replace_forward(layer, partial(_run_checkpointed, layer.forward)))
        yield


@contextmanager
def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run another function inside the block."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            # Accelerate's hooks also replace `forward` on the instance.
            module.forward = before


def _run_checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # A second run would add its keys and values to the cache once more.
    has_cache = any(kwargs.get(name) is not None for name in CACHE_ARGUMENTS)
    if has_cache or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # In evaluation mode nothing is drawn, so the random state need not be saved.
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
