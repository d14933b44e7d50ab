"""Of a table of word embeddings only the rows that some batches use: the others have no part in a step's outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from exegete.models import Batch, ExplainedModel
from exegete.training.bilevel.inner_optimizers import InnerOptimizer


class UsedEmbeddings:
    """A model's word embeddings as the rows that its batches use.

    Most of a small model's weights are words of which a batch has hardly any: their gradients and slopes are zero.
    Models whose inputs are no words, or not looked up as they stand (decoders), keep the whole table.

    Args:
        model: whose embeddings.
        batches: all that it will read inside `use_rows_in_lookup`; padding of its own accord may come with them.
    """

    def __init__(self, model: ExplainedModel, *batches: Batch) -> None:
        self.layer = model.embedding
        self.table: Tensor | None = None
        if isinstance(self.layer, nn.Embedding) and model.modality == "text" and not model.is_decoder:
            self.table = None if self.layer.max_norm or self.layer.sparse else self.layer.weight
        if self.table is not None:
            padding = torch.tensor([model.pad_id], device=self.table.device)
            self.used = torch.cat([*(batch.inputs["input_ids"].flatten() for batch in batches), padding]).unique()
            self.place = self.used.new_full((len(self.table),), len(self.table))
            self.place[self.used] = torch.arange(len(self.used), device=self.used.device)

    def select(self, weights: Mapping[str, Tensor], update: InnerOptimizer) -> tuple[dict[str, Tensor], InnerOptimizer]:
        """The weights with the rows in their table's stead, as leaves of a graph, and the update of these."""
        name = next((name for name, weight in weights.items() if weight is self.table), None)
        if name is None:
            self.table = None
            return dict(weights), update
        rows = weights[name].detach()[self.used].requires_grad_()
        return {**weights, name: rows}, update.for_rows(name, self.used)

    def gradients(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights' gradients from their `.grad`; of the embedding table only those of the used rows."""
        found = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        return {name: grad[self.used] if weights[name] is self.table else grad for name, grad in found.items()}

    @contextmanager
    def use_rows_in_lookup(self) -> Iterator[None]:
        """Inside the block the model finds words among the rows, which have to stand in the table's place."""
        if self.table is None or not isinstance(self.layer, nn.Embedding):
            yield
            return
        before = self.layer.padding_idx
        self.layer.padding_idx = None if before is None else self._padding(before)
        try:
            with self.layer.register_forward_pre_hook(lambda _, inputs: (self.place[inputs[0]], *inputs[1:])):
                yield
        finally:
            self.layer.padding_idx = before

    def _padding(self, row: int) -> int | None:
        """Where the row is that gets no gradient; nowhere, if no batch has it."""
        return int(self.place[row]) if row in self.used else None
