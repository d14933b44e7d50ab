"""The rows of a word embedding table that some batches use, in place of the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from expound.models import Batch, ExplainedModel
from expound.training.bilevel.inner_optimizers import InnerOptimizer


class UsedEmbeddings:
    """A model's word embeddings, reduced to the rows that its batches use.

    Most weights of a small model are word embeddings, and a batch uses few of them: all other rows have gradients of
    zero. Models without word embeddings, and decoders, keep the whole table.

    Args:
        model: the model.
        batches: all batches that the model reads inside `use_rows_in_lookup`.
    """

    def __init__(self, model: ExplainedModel, *batches: Batch) -> None:
        self.layer = model.embedding
        self.table: Tensor | None = None
        # Decoders do not look up their ids unchanged.
        is_looked_up = model.modality == "text" and not model.is_decoder
        if is_looked_up and isinstance(self.layer, nn.Embedding) and not (self.layer.max_norm or self.layer.sparse):
            self.table = self.layer.weight
        if self.table is not None:
            # A model may add padding of its own, as for windows of attention.
            padding = torch.tensor([model.pad_id], device=self.table.device)
            ids = [batch.inputs["input_ids"].flatten() for batch in batches]
            self.used = torch.cat([*ids, padding]).unique()
            # The index of an unused word is out of range, so that looking one up fails loudly.
            self.place = self.used.new_full((len(self.table),), len(self.table))
            self.place[self.used] = torch.arange(len(self.used), device=self.used.device)

    def select(self, weights: Mapping[str, Tensor], update: InnerOptimizer) -> tuple[dict[str, Tensor], InnerOptimizer]:
        """Return the weights with the used rows, a leaf, in place of the table, and the matching optimizer."""
        name = next((name for name, weight in weights.items() if weight is self.table), None)
        if name is None:
            self.table = None
            return dict(weights), update
        rows = weights[name].detach()[self.used].requires_grad_()
        return {**weights, name: rows}, update.for_rows(name, self.used)

    def gradients(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights' `.grad` by name; of the embedding table only the used rows."""
        gradients = {}
        for name, weight in weights.items():
            if weight.grad is not None:
                gradients[name] = weight.grad[self.used] if weight is self.table else weight.grad
        return gradients

    @contextmanager
    def use_rows_in_lookup(self) -> Iterator[None]:
        """Make the model look up words in the used rows inside the block; they must replace the table's weight."""
        if self.table is None or not isinstance(self.layer, nn.Embedding):
            yield
            return
        # The embedding layer gives the padding row no gradient: it needs the row's new index.
        previous = self.layer.padding_idx
        self.layer.padding_idx = None
        if previous is not None and previous in self.used:
            self.layer.padding_idx = int(self.place[previous])
        try:
            with self.layer.register_forward_pre_hook(lambda _, inputs: (self.place[inputs[0]], *inputs[1:])):
                yield
        finally:
            self.layer.padding_idx = previous
