"""An encoder and its decoder as one model over one row: the encoder's tokens, then what the decoder reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from exegete.models.layers.architecture import unwrap_adapter


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
        values = values.movedim(1, -1) if has_heads else values
        real = queries.real[:, :, None] & keys.real[:, None]
        real = real[..., None] if has_heads else real
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
