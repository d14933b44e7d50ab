"""Recording of each layer's call, so that a layer can be run again on its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.hugging_face import HuggingFaceModel
from exegete.models.layers.architecture import encoder_decoder_error, get_layers
from exegete.models.outputs import Capture
from exegete.models.passes.capture import record_attention


@dataclass(frozen=True)
class LayerCall:
    """One layer's call in a forward pass of one example, and its `output` [1, L, d]."""

    model: HuggingFaceModel
    layer: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Tensor

    def run_without_values(self, positions: Tensor) -> Tensor:
        """Return the layer's output [m, L, d] with zero vectors as the values at `positions` [m, L]."""
        arguments, keywords = self.arguments, dict(self.keywords)
        hidden = arguments[0] if arguments else keywords["hidden_states"]
        # Only the hidden states get m rows; masks and rotations of the one example are broadcast.
        copies = hidden.expand(len(positions), -1, -1)
        if arguments:
            arguments = (copies, *arguments[1:])
        else:
            keywords["hidden_states"] = copies
        try:
            with record_attention(self.model.model, Capture(), positions):
                return _get_hidden_states(self.layer(*arguments, **keywords))
        except (LookupError, RuntimeError) as error:
            raise ExegeteError(
                f"a layer of {type(self.model.model).__name__} does not run on copies of its input: {error}"
            ) from error


def record_layer_calls(model: HuggingFaceModel, batch: Batch) -> list[LayerCall]:
    """Return the calls of the layers in one forward pass of a single example without padding, in their order.

    Raises:
        ExegeteError: a family without a record, or an encoder with a decoder.
    """
    if model.is_encoder_decoder:
        raise encoder_decoder_error()
    calls: list[LayerCall] = []

    def record(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        # A second call must not see the keys and values that the first one left for a next token.
        positional = tuple(map(_drop_cache, arguments))
        named = {name: _drop_cache(value) for name, value in keywords.items()}
        calls.append(LayerCall(model, layer, positional, named, _get_hidden_states(output)))

    with ExitStack() as scope:
        scope.enter_context(record_attention(model.model, Capture()))
        # ALBERT runs one layer many times; a second hook on it would record every call twice.
        for layer in dict.fromkeys(get_layers(model.model)):
            scope.enter_context(layer.register_forward_hook(record, with_kwargs=True))
        model(batch)
    return calls


def _drop_cache(argument: Any) -> Any:
    return None if isinstance(argument, Cache) else argument


def _get_hidden_states(output: Any) -> Tensor:
    """Return the hidden states in a layer's output, which some families return in a tuple."""
    hidden: Tensor = output if isinstance(output, Tensor) else output[0]
    return hidden
