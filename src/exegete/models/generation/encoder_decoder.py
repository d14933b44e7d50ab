"""Models with an encoder and a decoder, explained in the text that they generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.batch import Batch, require_decoder_mask
from exegete.models.generation.model import GeneratingModel
from exegete.models.generation.single_row import RowLayout, SingleRowModel
from exegete.models.layers.architecture import encoder_decoder_error, unwrap_adapter
from exegete.models.outputs import Capture, Outputs


class EncoderDecoderModel(GeneratingModel):
    """An encoder with a decoder (T5, BART, Marian, …) whose response to a prompt is explained.

    A row of a batch holds the encoder's tokens, then what the decoder reads: its start tokens and the response
    (`Batch.decoder_mask`). Content is the prompt; the decoder's own earlier tokens only on request, and they are never
    removed. Attention maps hold both sides: a position of the decoder has cross-attention and self-attention.

    Args:
        model: an encoder-decoder with a language modelling head.
        processing_class: its tokenizer; without it only batches made from ids work.
        max_length: the most tokens of a prompt, if fewer than the model allows.

    Raises:
        ExegeteError: another kind of model, or one whose two stacks have different word embeddings.
    """

    is_encoder_decoder = True

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        core: Any = unwrap_adapter(model)
        tables: list[Any] = []
        for stack in (core.get_encoder(), core.get_decoder()):
            tables.append(stack.get_input_embeddings() if hasattr(stack, "get_input_embeddings") else None)
        # The weights are compared, not the modules: BART's stacks have modules of their own around one weight.
        if None in tables or tables[0].weight is not tables[1].weight:
            raise ExegeteError(
                f"{type(core).__name__} has no word embeddings that encoder and decoder share: it is not explained"
            )
        super().__init__(SingleRowModel(model), processing_class, max_length)

    @property
    def generator(self) -> PreTrainedModel:
        """The Hugging Face model that generates."""
        return cast(SingleRowModel, self.model).inner

    @property
    def decoder_start_ids(self) -> tuple[int, ...]:
        """The ids that the decoder reads before the response: its start token, and a forced first token.

        Raises:
            ExegeteError: the model has no start token.
        """
        start = self._find_token("decoder_start_token_id", "bos_token_id")
        if start is None:
            raise ExegeteError(f"{type(self.generator).__name__} does not say with which token its decoder starts")
        # mBART forces the code of the target language.
        forced = self._find_token("forced_bos_token_id")
        return (start,) if forced is None else (start, forced)

    def _find_token(self, *names: str) -> int | None:
        """Return the first id under these names in the settings for generation or in the configuration."""
        for name in names:
            for settings in (getattr(self.generator, "generation_config", None), self.config):
                token = getattr(settings, name, None)
                if token is not None:
                    return int(token)
        return None

    @property
    def attention_shape(self) -> tuple[int, int]:
        """The number of the decoder's layers, and of their heads."""
        return cast(SingleRowModel, self.model).attention_shape

    def scatter_states(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """Return the states [B, L, d] of the row from the encoder's [B, S, d] and the decoder's [B, T, d].

        A single tensor is already one of the whole row.
        """
        if len(parts) == 1:
            return parts[0]
        layout = RowLayout.of(batch.attended, require_decoder_mask(batch))
        encoder = layout.encoder.scatter(parts[0], batch.length)
        return encoder + layout.decoder.scatter(parts[1], batch.length)

    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """Run one forward pass; `attentions` join cross- and self-attention per decoder layer, [B, H, L, L].

        Raises:
            ExegeteError: hidden states or heads are asked for.
        """
        if capture is not None and (capture.hidden_states or capture.heads):
            raise encoder_decoder_error()
        outputs = super().forward(batch, embeddings, capture)
        if not outputs.attentions:
            return outputs
        layers = 1 if capture is not None and capture.last_only else self.attention_shape[0]
        # A decoder layer runs self-attention, then cross-attention.
        maps = self.scatter_attention(batch, outputs.attentions[-2 * layers :])
        joined = tuple(own + cross for own, cross in zip(maps[::2], maps[1::2], strict=True))
        return replace(outputs, attentions=joined, blocks=outputs.attentions)

    def scatter_attention(self, batch: Batch, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return maps among all positions of the row from maps between sides, shaped like the last blocks."""
        layout = RowLayout.of(batch.attended, require_decoder_mask(batch))
        encoder, decoder, decoder_layers = layout.encoder, layout.decoder, self.attention_shape[0]
        encoder_maps = max(0, len(maps) - 2 * decoder_layers)
        # Queries and keys of every block, in the order in which blocks run.
        sides = [(encoder, encoder)] * encoder_maps + [(decoder, decoder), (decoder, encoder)] * decoder_layers
        return [layout.scatter_map(*pair, block) for pair, block in zip(sides, maps, strict=False)]

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture) | {"decoder_mask": require_decoder_mask(batch)}
        # `SingleRowModel.forward` has no such argument.
        arguments.pop("return_dict", None)
        return arguments
