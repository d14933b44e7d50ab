"""What one pass shows of the layers: the record of their parts, and their calls, so that a layer can run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from expound.errors import ExpoundError
from expound.models.batch import PER_POSITION, Batch, Capture
from expound.models.hugging_face import MOST, HuggingFaceModel, remember, take_example
from expound.models.layers.architecture import encoder_decoder_error, get_layers
from expound.models.layers.derive_record import derive_record
from expound.models.layers.layer_parts import Record
from expound.models.layers.operations import mark_input
from expound.models.passes.capture import intercept_inputs, record_attention


def find_record(model: Any, batch: Batch) -> Record:
    """Return the record of a model's layers and head, derived from an example of the batch at the first call.

    Raises:
        ExpoundError: see `derive_record`; also for an encoder with a decoder.
    """
    if model.is_encoder_decoder:
        raise encoder_decoder_error()

    def derive() -> Record:
        alone = take_example(model, batch)
        if alone.response is not None:
            # One token of a long response is enough.
            alone = alone._map_tensors(lambda values: values[:, : MOST + 1], PER_POSITION)
        return derive_record(model, alone)

    record: Record = remember(model, "layer record", derive)
    return record


@dataclass(frozen=True)
class LayerCall:
    """One layer's call in a forward pass, and its `output` [B, L, d]."""

    model: HuggingFaceModel
    layer: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Tensor

    @property
    def hidden(self) -> Tensor:
        """The hidden states [B, L, d] that the layer got."""
        hidden: Tensor = self.arguments[0] if self.arguments else self.keywords["hidden_states"]
        return hidden

    @property
    def depends_on_hidden_alone(self) -> bool:
        """Whether no other argument carries a gradient."""
        others = [*self.arguments[1:], *(value for name, value in self.keywords.items() if name != "hidden_states")]
        for value in others:
            # Cosines and sines of rotary embeddings come as a pair.
            parts = value if isinstance(value, tuple | list) else [value]
            if any(isinstance(part, Tensor) and part.requires_grad for part in parts):
                return False
        return True

    def run(self, hidden: Tensor) -> Tensor:
        """Return the layer's output [m, L, d] for other hidden states, in the hooks and modes that are active now."""
        if self.arguments:
            return _get_hidden_states(self.layer(hidden, *self.arguments[1:], **self.keywords))
        return _get_hidden_states(self.layer(**self.keywords | {"hidden_states": hidden}))

    def run_without_values(self, positions: Tensor) -> Tensor:
        """Return the layer's output [m, L, d] with zero vectors as the values at `positions` [m, L]; of one example."""
        # Only the hidden states get m rows; masks and rotations of the one example are broadcast.
        copies = self.hidden.expand(len(positions), -1, -1)
        try:
            with record_attention(self.model.model, Capture(), positions):
                return self.run(copies)
        except (LookupError, RuntimeError) as error:
            raise ExpoundError(
                f"a layer of {type(self.model.model).__name__} does not run on copies of its input: {error}"
            ) from error


def record_layer_calls(model: HuggingFaceModel, batch: Batch, embeddings: Tensor | None = None) -> list[LayerCall]:
    """Return the calls of the layers in one forward pass of a single example without padding, in their order.

    Raises:
        ExpoundError: attention that cannot be captured, or an encoder with a decoder.
    """
    if model.is_encoder_decoder:
        raise encoder_decoder_error()
    calls: list[LayerCall] = []

    def record(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        calls.append(_make_call(model, layer, arguments, keywords, _get_hidden_states(output)))

    with ExitStack() as scope:
        scope.enter_context(record_attention(model.model, Capture()))
        # ALBERT runs one layer many times; a second hook on it would record every call twice.
        for layer in dict.fromkeys(get_layers(model.model)):
            scope.enter_context(layer.register_forward_hook(record, with_kwargs=True))
        model(batch, embeddings)
    return calls


@contextmanager
def cut_graph_at_layers(model: HuggingFaceModel, layers: Sequence[nn.Module]) -> Iterator[list[LayerCall]]:
    """Let layers keep no graph inside the block, and yield their calls, whose outputs begin a new graph.

    A gradient at the last output can be computed then, and `compute_slopes` continues it through the layers.
    """
    calls: list[LayerCall] = []

    def cut(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        hidden = _get_hidden_states(output).detach().requires_grad_()
        calls.append(_make_call(model, layer, arguments, keywords, hidden))
        return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

    with ExitStack() as scope:
        scope.enter_context(intercept_inputs(layers, lambda _, hidden: mark_input(hidden.detach())))
        for layer in layers:
            scope.enter_context(layer.register_forward_hook(cut, with_kwargs=True))
        yield calls


def compute_slopes(calls: Sequence[LayerCall], slopes: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the gradients at the input of every layer, for each of several gradients at the last one's output.

    Layers run again, the last one first, so that the values of one layer at a time are in memory.

    Args:
        calls: the calls of N layers; each layer got the output of the one before it.
        slopes: T gradients [B, L, d].

    Returns:
        T lists of N gradients [B, L, d], the first layer's first.
    """
    current, found = list(slopes), [list[Tensor]() for _ in slopes]
    for call in reversed(calls):
        with torch.enable_grad():
            hidden = call.hidden.detach().requires_grad_()
            output = call.run(hidden)
        for number, slope in enumerate(current):
            is_last = number + 1 == len(current)
            (current[number],) = torch.autograd.grad(output, hidden, slope, retain_graph=not is_last)
            found[number].insert(0, current[number])
    return found


def _make_call(
    model: HuggingFaceModel, layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Tensor
) -> LayerCall:
    # A second call must not see the keys and values that the first one left for a next token.
    positional = tuple(map(_drop_cache, arguments))
    named = {name: _drop_cache(value) for name, value in keywords.items()}
    return LayerCall(model, layer, positional, named, output)


def _drop_cache(argument: Any) -> Any:
    return None if isinstance(argument, Cache) else argument


def _get_hidden_states(output: Any) -> Tensor:
    """Return the hidden states in a layer's output, which some families return in a tuple."""
    hidden: Tensor = output if isinstance(output, Tensor) else output[0]
    return hidden
