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
from exegete.models.generation.places import decoded_of
from exegete.models.generation.two_sides import Sides, TwoSides
from exegete.models.layers.architecture import two_stacks
from exegete.models.loading.adapters import unwrapped
from exegete.models.outputs import Outputs
from exegete.models.passes.capture import Capture


class EncoderDecoderModel(GeneratingModel):
    """An encoder with a decoder (T5, BART, Marian, …) whose response to a prompt is explained.

    A row of a batch is the encoder's tokens, then what the decoder reads: its start and the response
    (`Batch.decoded`). Content is the prompt; the decoder's own earlier tokens only if asked, and never removed.
    Attention maps hold both sides: what a decoder's position sees is cross-attention and its own side's.

    Args:
        model: an encoder-decoder with a language modelling head.
        processing_class: its tokenizer; without it only batches made from ids work.
        max_length: tokens that the prompt may have, where that shall be fewer than the model takes.

    Raises:
        ExegeteError: another kind of model, or one whose sides look words up in tables of their own.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        core: Any = unwrapped(model)
        tables = [stack.get_input_embeddings() for stack in (core.get_encoder(), core.get_decoder())]
        if None in tables or tables[0].weight is not tables[1].weight:
            raise ExegeteError(
                f"{type(core).__name__} has no word embeddings that encoder and decoder share: it is not explained"
            )
        super().__init__(TwoSides(model), processing_class, max_length)

    two_stacks = True

    @property
    def two_sides(self) -> TwoSides:
        """The model over rows of both sides."""
        return cast(TwoSides, self.model)

    @property
    def spoken(self) -> PreTrainedModel:
        """The Hugging Face model that generates."""
        return self.two_sides.inner

    @property
    def start(self) -> tuple[int, ...]:
        """Ids that the decoder reads before the response: its start, and a first token that is forced on it."""
        start = (self._token("decoder_start_token_id", "bos_token_id"), self._token("forced_bos_token_id"))
        if start[0] is None:
            raise ExegeteError(f"{type(self.spoken).__name__} does not say with which token its decoder starts")
        return tuple(token for token in start if token is not None)

    def _token(self, *names: str) -> int | None:
        """The first id that the model's settings for generation, or its configuration, have under these names."""
        held = [getattr(self.spoken, "generation_config", None), self.config]
        known = (getattr(settings, name, None) for name in names for settings in held)
        return next((int(token) for token in known if token is not None), None)

    @property
    def read_attention(self) -> tuple[int, int]:
        """The layers of the decoder and their heads."""
        return self.two_sides.read_attention

    def prompt_room(self, response: int) -> int:
        """As many as the response, which has a side of its own, may have too."""
        return self.max_length if response + len(self.start) <= self.max_length else 0

    def in_row(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """[B, L, d] of the encoder's [B, S, d] and the decoder's [B, T, d]; of the whole row it is that."""
        if len(parts) == 1:
            return parts[0]
        sides = Sides.of(batch.attended, decoded_of(batch))
        return sides.encoder.place(parts[0], batch.length) + sides.decoder.place(parts[1], batch.length)

    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """As of any model; `attentions` of the decoder's layers, cross and own side in one, `blocks` of all.

        Raises:
            ExegeteError: hidden states or heads are asked for.
        """
        if capture is not None and (capture.hidden_states or capture.heads):
            raise two_stacks()
        found = super().forward(batch, embeddings, capture)
        if not found.attentions:
            return found
        layers = 1 if capture is not None and capture.last_only else self.read_attention[0]
        placed = self.mixtures(batch, found.attentions[-2 * layers :])
        joined = tuple(own + cross for own, cross in zip(placed[::2], placed[1::2], strict=True))
        return replace(found, attentions=joined, blocks=found.attentions)

    def mixtures(self, batch: Batch, maps: Sequence[Tensor]) -> list[Tensor]:
        """The maps between sides, of the last blocks, among all positions of the row."""
        sides = Sides.of(batch.attended, decoded_of(batch))
        (encoder, decoder), decoding = (sides.encoder, sides.decoder), 2 * self.read_attention[0]
        own = [(encoder, encoder)] * max(0, len(maps) - decoding) + [(decoder, decoder), (decoder, encoder)] * decoding
        return [sides.row_of(*pair, block) for pair, block in zip(own, maps, strict=False)]

    def _arguments_for(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._arguments_for(batch, capture) | {"decoded": decoded_of(batch)}
        arguments.pop("return_dict", None)
        return arguments
