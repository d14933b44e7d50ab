"""Models with an encoder and a decoder, explained in the text that they generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture, Outputs, require_decoder_mask
from expound.models.generation.model import GeneratingModel
from expound.models.layers.architecture import encoder_decoder_error, unwrap_adapter


class EncoderDecoderModel(GeneratingModel):
    """An encoder with a decoder (T5, BART, Marian, …) whose response to a prompt is explained.

    A row of a batch holds the encoder's tokens, then what the decoder reads: its start tokens and the response
    (`Batch.decoder_mask`). Content is the prompt; the decoder's own earlier tokens only on request, and they are never
    removed. Attention maps hold both sides: a position of the decoder has cross-attention and self-attention.

    Args:
        model: an encoder-decoder with a language modeling head.
        processing_class: its tokenizer; without it only batches made from ids work.
        max_length: the most tokens of a prompt, if fewer than the model allows.

    Raises:
        ExpoundError: another kind of model, or one whose two stacks have different word embeddings.
    """

    is_encoder_decoder = True

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        core: Any = unwrap_adapter(model)
        tables: list[Any] = []
        for stack in (core.get_encoder(), core.get_decoder()):
            tables.append(stack.get_input_embeddings() if hasattr(stack, "get_input_embeddings") else None)
        # The weights are compared, not the modules: BART's stacks have modules of their own around one weight.
        if None in tables or tables[0].weight is not tables[1].weight:
            raise ExpoundError(
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
            ExpoundError: the model has no start token.
        """
        start = self._find_token("decoder_start_token_id", "bos_token_id")
        if start is None:
            raise ExpoundError(f"{type(self.generator).__name__} does not say with which token its decoder starts")
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

    @cached_property
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
            ExpoundError: hidden states or heads are asked for.
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


@dataclass(frozen=True, slots=True)
class StackColumns:
    """The columns [B, S] of a row that one stack reads, moved to the left, and a mask [B, S] of the real ones."""

    columns: Tensor
    real: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> StackColumns:
        """Return the columns in `mask` [B, L]."""
        # One column at least: models fail on inputs of length 0.
        longest = max(1, int(mask.sum(1).max()))
        columns = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
        return cls(columns, mask.gather(1, columns))

    @property
    def rows(self) -> Tensor:
        """The row numbers [B, 1], as an index beside `columns`."""
        return torch.arange(len(self.columns), device=self.columns.device)[:, None]

    def gather(self, row: Tensor) -> Tensor:
        """Return the stack's entries [B, S, …] of a row [B, L, …]."""
        return row[self.rows, self.columns]

    def scatter(self, values: Tensor, length: int) -> Tensor:
        """Return a row [B, L, …] with the stack's values [B, S, …] and zeros elsewhere."""
        real = self.real[(...,) + (None,) * (values.ndim - 2)]
        row = values.new_zeros(len(values), length, *values.shape[2:])
        # index_put, not assignment in place, since gradients are taken through it.
        return row.index_put((self.rows, self.columns), torch.where(real, values, 0))


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of encoder and decoder in rows of `length` positions."""

    encoder: StackColumns
    decoder: StackColumns
    length: int

    @classmethod
    def of(cls, attended: Tensor, decoder_mask: Tensor) -> RowLayout:
        """Return the layout of rows with these real positions and these positions of the decoder, both [B, L]."""
        encoder, decoder = attended & ~decoder_mask, attended & decoder_mask
        return cls(StackColumns.of(encoder), StackColumns.of(decoder), attended.shape[1])

    def scatter_map(self, queries: StackColumns, keys: StackColumns, values: Tensor) -> Tensor:
        """Return a map [B, L, L] among all positions from a map [B, Q, K] between two sides; or [B, H, …] of both."""
        has_heads = values.ndim > 3
        real = queries.real[:, :, None] & keys.real[:, None]
        if has_heads:
            values, real = values.movedim(1, -1), real[..., None]
        row = values.new_zeros(len(values), self.length, self.length, *values.shape[3:])
        places = (queries.rows[..., None], queries.columns[:, :, None], keys.columns[:, None])
        row = row.index_put(places, torch.where(real, values, 0))
        return row.movedim(-1, 1) if has_heads else row


class SingleRowModel(PreTrainedModel):
    """A model with an encoder and a decoder that reads both sides from one row [B, L] and answers in it.

    Each stack gets its own ids from the left and makes its own positions and masks. Word embeddings are looked up for
    the whole row first, so that they can be replaced there.
    """

    base_model_prefix = "inner"
    # transformers asks these flags when the attention implementation is changed.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, inner: PreTrainedModel) -> None:
        super().__init__(inner.config)
        self.inner, self.training = inner, inner.training

    @property
    def base_model(self) -> nn.Module:
        """The base model of the model inside."""
        base: nn.Module = unwrap_adapter(self.inner).base_model
        return base

    @property
    def stacks(self) -> tuple[Any, Any]:
        """The encoder and the decoder."""
        core: Any = unwrap_adapter(self.inner)
        return core.get_encoder(), core.get_decoder()

    @property
    def last_attention(self) -> int:
        """The number of the first attention in the decoder's last layer, counted from 1."""
        encoder, decoder = self.stacks
        attentions = [module for module in chain(encoder.modules(), decoder.modules()) if hasattr(module, "is_causal")]
        # Two attentions in a decoder layer, and the last one has number n: so n − 1.
        return len(attentions) - 1

    @property
    def attention_shape(self) -> tuple[int, int]:
        """The number of the decoder's layers, and of their heads."""
        # Only self-attention is causal, so there is one such module per layer.
        causal = [module for module in self.stacks[1].modules() if getattr(module, "is_causal", False)]
        return len(causal), int(getattr(self.config, "decoder_attention_heads", self.config.num_attention_heads))

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings of both sides."""
        words: nn.Module = self.stacks[0].get_input_embeddings()
        return words

    def get_output_embeddings(self) -> nn.Module:
        """Return the decoder's head."""
        head: nn.Module = unwrap_adapter(self.inner).get_output_embeddings()
        return head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, decoder_mask: Tensor, logits_to_keep: Tensor
    ) -> CausalLMOutput:
        """Return logits [B, K, V] at K columns; they are undefined outside the decoder's positions."""
        layout = RowLayout.of(attention_mask.bool(), decoder_mask)
        words = self.get_input_embeddings()(input_ids)
        with self._replace_lookups([layout.encoder.gather(words), layout.decoder.gather(words)]):
            logits = self.inner(
                input_ids=layout.encoder.gather(input_ids),
                attention_mask=layout.encoder.real.long(),
                decoder_input_ids=layout.decoder.gather(input_ids),
                decoder_attention_mask=layout.decoder.real.long(),
                use_cache=False,
                return_dict=True,
            ).logits
        # The decoder's columns are side by side, so a column's place in the stack is its distance from the first.
        step = (logits_to_keep - decoder_mask.long().argmax(1, keepdim=True)).clamp(0, logits.shape[1] - 1)
        return CausalLMOutput(logits=logits[layout.decoder.rows, step])

    @contextmanager
    def _replace_lookups(self, words: Sequence[Tensor]) -> Iterator[None]:
        """Let the stacks look up these embeddings inside the block, the encoder first."""
        remaining = iter(words)
        # T5's stacks share one table, so a set of tables gets the hooks.
        tables = dict.fromkeys(stack.get_input_embeddings() for stack in self.stacks)
        with ExitStack() as scope:
            for table in tables:
                scope.enter_context(table.register_forward_hook(lambda *_: next(remaining)))
            yield
