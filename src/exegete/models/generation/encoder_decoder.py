"""An encoder with a decoder, explained in what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.generation.model import GeneratingModel
from exegete.models.generation.single_row import RowLayout, SingleRowModel
from exegete.models.layers.architecture import encoder_decoder_error
from exegete.models.loading.adapters import unwrap_adapter
from exegete.models.outputs import Outputs
from exegete.models.passes.capture import Capture
from exegete.models.response_positions import require_decoder_mask


class EncoderDecoderModel(GeneratingModel):
    """An encoder with a decoder (T5, BART, Marian, …) whose response to a prompt is explained.

    A row of a batch is the encoder's tokens, then what the decoder reads: its start and the response
    (`Batch.decoder_mask`). Content is the prompt; the decoder's own earlier tokens only if asked, and never removed.
    Attention maps hold both sides: what a decoder's position sees is cross-attention and its own side's.

    Args:
        model: an encoder-decoder with a language modelling head.
        processing_class: its tokenizer; without it only batches made from ids work.
        max_length: tokens that the prompt may have, where that shall be fewer than the model takes.

    Raises:
        ExegeteError: another kind of model, or one whose sides look words up in tables of their own.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        core: Any = unwrap_adapter(model)
        tables = [stack.get_input_embeddings() for stack in (core.get_encoder(), core.get_decoder())]
        if None in tables or tables[0].weight is not tables[1].weight:
            raise ExegeteError(
                f"{type(core).__name__} has no word embeddings that encoder and decoder share: it is not explained"
            )
        super().__init__(SingleRowModel(model), processing_class, max_length)

    is_encoder_decoder = True

    @property
    def single_row(self) -> SingleRowModel:
        """The model over rows of both sides."""
        return cast(SingleRowModel, self.model)

    @property
    def generator(self) -> PreTrainedModel:
        """The Hugging Face model that generates."""
        return self.single_row.inner

    @property
    def decoder_start_ids(self) -> tuple[int, ...]:
        """Ids that the decoder reads before the response: its start, and a first token that is forced on it."""
        start = (self._token("decoder_start_token_id", "bos_token_id"), self._token("forced_bos_token_id"))
        if start[0] is None:
            raise ExegeteError(f"{type(self.generator).__name__} does not say with which token its decoder starts")
        return tuple(token for token in start if token is not None)

    def _token(self, *names: str) -> int | None:
        """The first id that the model's settings for generation, or its configuration, have under these names."""
        held = [getattr(self.generator, "generation_config", None), self.config]
        known = (getattr(settings, name, None) for name in names for settings in held)
        return next((int(token) for token in known if token is not None), None)

    @property
    def attention_shape(self) -> tuple[int, int]:
        """The layers of the decoder and their heads."""
        return self.single_row.attention_shape

    def max_prompt_length(self, response: int) -> int:
        """As many as the response, which has a side of its own, may have too."""
        return self.max_length if response + len(self.decoder_start_ids) <= self.max_length else 0

    def scatter_states(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """[B, L, d] of the encoder's [B, S, d] and the decoder's [B, T, d]; of the whole row it is that."""
        if len(parts) == 1:
            return parts[0]
        sides = RowLayout.of(batch.attended, require_decoder_mask(batch))
        return sides.encoder.place(parts[0], batch.length) + sides.decoder.place(parts[1], batch.length)

    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """As of any model; `attentions` of the decoder's layers, cross and own side in one, `blocks` of all.

        Raises:
            ExegeteError: hidden states or heads are asked for.
        """
        if capture is not None and (capture.hidden_states or capture.heads):
            raise encoder_decoder_error()
        found = super().forward(batch, embeddings, capture)
        if not found.attentions:
            return found
        layers = 1 if capture is not None and capture.last_only else self.attention_shape[0]
        placed = self.scatter_attention(batch, found.attentions[-2 * layers :])
        joined = tuple(own + cross for own, cross in zip(placed[::2], placed[1::2], strict=True))
        return replace(found, attentions=joined, blocks=found.attentions)

    def scatter_attention(self, batch: Batch, maps: Sequence[Tensor]) -> list[Tensor]:
        """The maps between sides, of the last blocks, among all positions of the row."""
        sides = RowLayout.of(batch.attended, require_decoder_mask(batch))
        (encoder, decoder), decoding = (sides.encoder, sides.decoder), 2 * self.attention_shape[0]
        own = [(encoder, encoder)] * max(0, len(maps) - decoding) + [(decoder, decoder), (decoder, encoder)] * decoding
        return [sides.row_of(*pair, block) for pair, block in zip(own, maps, strict=False)]

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture) | {"decoder_mask": require_decoder_mask(batch)}
        arguments.pop("return_dict", None)
        return arguments
