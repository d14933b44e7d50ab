"""Backward passes that keep the values of one layer at a time, for inputs whose values of all layers need too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class LayerRun:
    """A call of a layer: its arguments, and its output [B, L, d], cut from the graph."""

    forward: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    @property
    def states(self) -> Tensor:
        """The hidden states [B, L, d] that the layer got."""
        states: Tensor = self.args[0] if self.args else self.kwargs["hidden_states"]
        return states

    @property
    def depends_on_states_alone(self) -> bool:
        """Whether no other argument can carry a gradient, or is changed by a second run."""
        others = [*self.args[1:], *(value for name, value in self.kwargs.items() if name != "hidden_states")]
        has_gradient = any(isinstance(value, Tensor) and value.requires_grad for value in others)
        return not has_gradient and self.kwargs.get("past_key_values") is None

    def repeat(self, states: Tensor) -> Tensor:
        """Return the output for other hidden states."""
        if self.args:
            return _first_tensor(self.forward(states, *self.args[1:], **self.kwargs))
        return _first_tensor(self.forward(**self.kwargs | {"hidden_states": states}))


@contextmanager
def run_without_graph(layers: Sequence[nn.Module]) -> Iterator[list[LayerRun]]:
    """Let these layers run without a graph inside the block, and yield the list of their calls.

    Their outputs begin a new graph: the gradient at an output can be computed, and `compute_slopes` continues it.
    """
    runs: list[LayerRun] = []

    def run(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            result = own(*args, **kwargs)
        output = _first_tensor(result).detach().requires_grad_()
        runs.append(LayerRun(own, args, kwargs, output))
        return output if isinstance(result, Tensor) else (output, *result[1:])

    before = [(layer, layer.__dict__.get("forward")) for layer in layers]
    for layer in layers:
        layer.forward = partial(run, layer.forward)
    try:
        yield runs
    finally:
        for layer, own in before:
            if own is None:
                del layer.__dict__["forward"]
            else:
                # Accelerate's hooks also replace `forward` on the instance.
                layer.forward = own


def are_chained(runs: Sequence[LayerRun], last: Tensor) -> bool:
    """Return whether each layer got the output of the one before as its only input, and `last` is the last output."""
    following = [*(run.states for run in runs[1:]), last]
    return bool(runs) and all(
        run.depends_on_states_alone and run.output is states for run, states in zip(runs, following, strict=True)
    )


def compute_slopes(runs: Sequence[LayerRun], slopes: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the gradients at the input of every layer, for each of several gradients at the last one's output.

    Layers run again, the last one first, in whatever hooks and modes are active now.

    Args:
        runs: the calls of N layers, see `are_chained`.
        slopes: T gradients [B, L, d].

    Returns:
        T lists of N gradients [B, L, d], the first layer's first.
    """
    current, found = list(slopes), [list[Tensor]() for _ in slopes]
    for run in reversed(runs):
        with torch.enable_grad():
            states = run.states.detach().requires_grad_()
            output = run.repeat(states)
        for number, slope in enumerate(current, 1):
            (current[number - 1],) = torch.autograd.grad(output, states, slope, retain_graph=number < len(current))
            found[number - 1].insert(0, current[number - 1])
    return found


def _first_tensor(result: Any) -> Tensor:
    states: Tensor = result if isinstance(result, Tensor) else result[0]
    return states
