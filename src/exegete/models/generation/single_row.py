"""An encoder and its decoder over one row: the encoder's tokens, then what the decoder reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from exegete.models.loading.adapters import unwrap_adapter


@dataclass(frozen=True, slots=True)
class StackColumns:
    """The positions of a row that one stack reads, moved to the left: `columns` [B, S] and which are `real` [B, S]."""

    columns: Tensor
    real: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> StackColumns:
        """The positions in `mask` [B, L]; one at least, so that there is no empty side."""
        longest = max(1, int(mask.sum(1).max()))
        columns = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
        return cls(columns, mask.gather(1, columns))

    @property
    def rows(self) -> Tensor:
        """[B, 1] The number of each row."""
        return torch.arange(len(self.columns), device=self.columns.device)[:, None]

    def take(self, row: Tensor) -> Tensor:
        """[B, S, ...] of [B, L, ...]."""
        return row[self.rows, self.columns]

    def place(self, own: Tensor, length: int) -> Tensor:
        """[B, L, ...] of [B, S, ...], zeros elsewhere."""
        real = self.real[(...,) + (None,) * (own.ndim - 2)]
        row = own.new_zeros(len(own), length, *own.shape[2:])
        return row.index_put((self.rows, self.columns), torch.where(real, own, 0))


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where encoder and decoder stand in rows of `length` positions."""

    encoder: StackColumns
    decoder: StackColumns
    length: int

    @classmethod
    def of(cls, attended: Tensor, decoder_mask: Tensor) -> RowLayout:
        """From real positions and those of the decoder, both [B, L]."""
        return cls(
            StackColumns.of(attended & ~decoder_mask), StackColumns.of(attended & decoder_mask), attended.shape[1]
        )

    def row_of(self, queries: StackColumns, keys: StackColumns, own: Tensor) -> Tensor:
        """[B, L, L] among all positions from [B, Q, K] between two sides; heads [B, H, Q, K] stay."""
        own = own.movedim(1, -1) if own.ndim > 3 else own  # [B, Q, K, H]
        real = (queries.real[:, :, None] & keys.real[:, None])[(...,) + (None,) * (own.ndim - 3)]
        row = own.new_zeros(len(own), self.length, self.length, *own.shape[3:])
        places = (queries.rows[..., None], queries.columns[:, :, None], keys.columns[:, None])
        found = row.index_put(places, torch.where(real, own, 0))
        return found.movedim(-1, 1) if own.ndim > 3 else found


class SingleRowModel(PreTrainedModel):
    """A model with an encoder and a decoder that reads both sides from one row [B, L], and answers in it.

    The stacks get their own ids, each from the left, and make their own positions and masks; word embeddings are
    looked up for the whole row first, so that they can be replaced there.
    """

    base_model_prefix = "inner"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, inner: PreTrainedModel) -> None:
        super().__init__(inner.config)
        self.inner, self.training = inner, inner.training

    @property
    def base_model(self) -> nn.Module:
        """That of the model inside."""
        base: nn.Module = unwrap_adapter(self.inner).base_model
        return base

    @property
    def stacks(self) -> tuple[Any, Any]:
        """Encoder and decoder."""
        core: Any = unwrap_adapter(self.inner)
        return core.get_encoder(), core.get_decoder()

    @property
    def last_attention(self) -> int:
        """The number of the first attention in the decoder's last layer, counted from 1."""
        return sum(hasattr(module, "is_causal") for stack in self.stacks for module in stack.modules()) - 1

    @property
    def attention_shape(self) -> tuple[int, int]:
        """The layers of the decoder and their heads."""
        causal = [module for module in self.stacks[1].modules() if getattr(module, "is_causal", False)]
        return len(causal), int(getattr(self.config, "decoder_attention_heads", self.config.num_attention_heads))

    def get_input_embeddings(self) -> nn.Module:
        """The words of both sides."""
        words: nn.Module = self.stacks[0].get_input_embeddings()
        return words

    def get_output_embeddings(self) -> nn.Module:
        """The decoder's head."""
        head: nn.Module = unwrap_adapter(self.inner).get_output_embeddings()
        return head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, decoder_mask: Tensor, logits_to_keep: Tensor
    ) -> CausalLMOutput:
        """Logits [B, K, V] at K columns; only what stands at a decoder's positions means anything."""
        sides = RowLayout.of(attention_mask.bool(), decoder_mask)
        words = self.get_input_embeddings()(input_ids)
        with self._reading([sides.encoder.take(words), sides.decoder.take(words)]):
            said = self.inner(
                input_ids=sides.encoder.take(input_ids),
                attention_mask=sides.encoder.real.long(),
                decoder_input_ids=sides.decoder.take(input_ids),
                decoder_attention_mask=sides.decoder.real.long(),
                use_cache=False,
                return_dict=True,
            ).logits
        step = (logits_to_keep - decoder_mask.long().argmax(1, keepdim=True)).clamp(0, said.shape[1] - 1)
        return CausalLMOutput(logits=said[sides.decoder.rows, step])

    @contextmanager
    def _reading(self, words: Sequence[Tensor]) -> Iterator[None]:
        """The stacks look up these embeddings, the encoder's first."""
        given = iter(words)
        tables = dict.fromkeys(stack.get_input_embeddings() for stack in self.stacks)
        with ExitStack() as scope:
            for table in tables:
                scope.enter_context(table.register_forward_hook(lambda *_: next(given)))
            yield
