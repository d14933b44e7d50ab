"""Contract tests that an explainer leaves model and process bit by bit unchanged; one fixture, `explainer`."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.models import ExplainedModel
from expound.testing.models import make_examples, random_model

HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
FRACTIONS = (0.0, 0.5, 1.0)
"""The calls of hooks in which an error is raised, as fractions of all calls."""


class NoSideEffectsContract:
    """Contract tests that a call changes no weights, gradients, hooks, modes, configuration or random states."""

    @pytest.fixture
    def model(self) -> ExplainedModel:
        """A small random classifier; override it for explainers that need another model."""
        return random_model()

    @pytest.fixture
    def examples(self) -> list[Any]:
        """The examples that are explained; override it for models of another task."""
        return make_examples(2)

    def test_the_model_is_unchanged(self, explainer: Explainer, model: ExplainedModel, examples: list[Any]) -> None:
        """A model with mixed modes, frozen weights and gradients is the same after a call with or without autograd."""
        simulate_use(model)
        batch = model.encode(examples)
        before = snapshot(model)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                explainer.attribute(model, batch)
            assert find_changes(before, model) == []

    def test_an_error_in_a_hook_leaves_no_trace(
        self, explainer: Explainer, model: ExplainedModel, examples: list[Any]
    ) -> None:
        """The state is restored after an error in the first, the middle and the last hook, forward and backward."""
        simulate_use(model)
        batch = model.encode(examples)
        # The first call also checks the model, in passes of its own.
        explainer.attribute(model, batch)
        with raise_in_hook(model, RuntimeError, None) as calls:
            explainer.attribute(model, batch)
        # an explainer that runs no pass calls no hook
        numbers = set()
        if calls:
            numbers = {1 + int(fraction * (len(calls) - 1)) for fraction in FRACTIONS}
        for number, error in zip(sorted(numbers), cycle((KeyboardInterrupt, RuntimeError))):
            with raise_in_hook(model, error, number):
                before = snapshot(model)
                with pytest.raises((error, ExpoundError)) as caught:
                    explainer.attribute(model, batch)
                assert error in (type(caught.value), type(caught.value.__cause__))
                assert find_changes(before, model) == []

    def test_threads_give_the_scores_of_one_thread(
        self, explainer: Explainer, model: ExplainedModel, examples: list[Any]
    ) -> None:
        """Two threads share one Hugging Face model, each through its own `ExplainedModel`; the model is unchanged."""
        simulate_use(model)
        batch, other = model.encode(examples), copy.copy(model)
        before = snapshot(model)
        expected = explainer.attribute(model, batch).detach()
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(explainer.attribute, each, batch) for each in (model, other) * 2]
            assert all(torch.equal(call.result().detach(), expected) for call in calls)
        assert find_changes(before, model) == []


def snapshot(model: ExplainedModel) -> dict[str, Any]:
    """Return the state that a call must not change, as values that can be compared with ==."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    modules, weights = dict(model.model.named_modules()), model.model.state_dict(keep_vars=True)
    # bytes, since NaN differs from itself; identities and versions, since a copy or a write of equal values counts too
    return {
        "modules": {name: id(module) for name, module in modules.items()},
        "training": {name: module.training for name, module in modules.items()},
        "hooks": {name: _list_hooks(module) for name, module in modules.items()},
        "attention types": {name: getattr(module, "attention_type", None) for name, module in modules.items()},
        "requires grad": {name: weight.requires_grad for name, weight in weights.items()},
        "gradients": {name: (id(weight.grad), _to_bytes(weight.grad)) for name, weight in weights.items()},
        "weights": {name: (w.data_ptr(), w.dtype, w.shape, w._version, _to_bytes(w)) for name, w in weights.items()},
        "config": model.config.to_dict(),
        "implementations": [each.config._attn_implementation for each in modules.values() if hasattr(each, "config")],
        "vocabulary": len(model.processing_class) if hasattr(model.processing_class, "__len__") else None,
        "memory": model.perturbation_cache,
        # bytes() of a tensor takes 10 ms, since it makes a tensor of each element
        "torch": _to_bytes(torch.get_rng_state()),
        "devices": list(map(_to_bytes, torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())),
        "numpy": (numpy_state[0], numpy_state[1].tobytes(), *numpy_state[2:]),
        "python": random.getstate(),
        "gradients enabled": torch.is_grad_enabled(),
        "kernels": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()),
    }


def _list_hooks(module: nn.Module) -> list[list[Any]]:
    return [list(getattr(module, name)) for name in HOOKS]


def find_changes(before: dict[str, Any], model: ExplainedModel) -> list[str]:
    """Return the names of the parts of the state that differ from a snapshot."""
    return [name for name, value in snapshot(model).items() if value != before[name]]


def simulate_use(model: ExplainedModel) -> ExplainedModel:
    """Return the model as in the middle of a user's work: mixed modes, some weights frozen, some with gradients."""
    for number, module in enumerate(model.model.modules()):
        module.training = number % 3 == 0
    for number, weight in enumerate(model.model.parameters()):
        weight.requires_grad_(number % 4 != 0)
        if number % 4 == 1:
            weight.grad = torch.full_like(weight, float(number))
    return model


@contextmanager
def raise_in_hook(model: ExplainedModel, error: type[BaseException], at: int | None) -> Iterator[list[None]]:
    """Inside the block, the `at`-th call of a hook raises the error; None: no call does. Yields the list of calls."""
    calls: list[None] = []

    def count(*_: Any) -> None:
        calls.append(None)
        if len(calls) == at:
            raise error("the hook broke")

    def forward(_module: nn.Module, _args: Any, output: Any) -> None:
        count()
        # a hook on the output is called in the backward pass
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(count)

    hooks = [module.register_forward_hook(forward) for module in model.model.modules()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _to_bytes(tensor: Tensor | None) -> bytes | None:
    if tensor is None:
        return None
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
