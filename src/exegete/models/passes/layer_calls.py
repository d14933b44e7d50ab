"""A model's layers one by one: what each was called with, so that it can be called again on its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from exegete.models.batch import Batch
from exegete.models.explained import ExplainedModel
from exegete.models.layers.architecture import encoder_decoder_error, get_layers
from exegete.models.passes.capture import Capture, record_attention


@dataclass(frozen=True)
class LayerCall:
    """One layer's call in a forward pass of one example, and its `output` [1, L, d]."""

    model: ExplainedModel
    layer: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Tensor

    def zeroed(self, positions: Tensor) -> Tensor:
        """The layer's output [m, L, d] with zero vectors for the values at `positions` [m, L].

        Everything but the hidden states that the layer was called with is one example's, and broadcast.
        """
        arguments, keywords = self.arguments, dict(self.keywords)
        hidden = arguments[0] if arguments else keywords["hidden_states"]
        copies = hidden.expand(len(positions), -1, -1)
        if arguments:
            arguments = (copies, *arguments[1:])
        else:
            keywords["hidden_states"] = copies
        with record_attention(self.model.model, Capture(), positions):
            return _hidden(self.layer(*arguments, **keywords))


def record_layer_calls(model: ExplainedModel, batch: Batch) -> list[LayerCall]:
    """The calls of the layers in one forward pass of a single example without padding, in their order.

    Raises:
        ExegeteError: a family without a record, or an encoder with a decoder.
    """
    if model.is_encoder_decoder:
        raise encoder_decoder_error()
    calls: list[LayerCall] = []

    def record(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        rest = (_uncached(value) for value in arguments)
        named = {name: _uncached(value) for name, value in keywords.items()}
        calls.append(LayerCall(model, layer, tuple(rest), named, _hidden(output)))

    with ExitStack() as scope:
        scope.enter_context(record_attention(model.model, Capture()))
        for layer in dict.fromkeys(get_layers(model.model)):
            scope.enter_context(layer.register_forward_hook(record, with_kwargs=True))
        model(batch)
    return calls


def _uncached(value: Any) -> Any:
    """Anything but the keys and values kept for a next token, which a second call must not see."""
    return None if isinstance(value, Cache) else value


def _hidden(output: Any) -> Tensor:
    """The hidden states in what a layer returns."""
    hidden: Tensor = output if isinstance(output, Tensor) else output[0]
    return hidden
