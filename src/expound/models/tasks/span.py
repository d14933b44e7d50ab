"""The task of a part of the text as the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from expound.models.batch import Batch
from expound.models.outputs import to_float32
from expound.models.tasks.base import Task, require_labels


class Span(Task):
    """A span of tokens, from start to end; its logit is the sum of both logits, its probability their product."""

    name = "span"
    target_dimensions = 2
    is_read_at_positions = True
    reads_context = True
    longest = 30

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits [B, 2, L] of starts and ends; padding gets the lowest finite number."""
        # Not −∞: 0·∞ in a gradient or a difference would be NaN.
        both = torch.stack([output.start_logits, output.end_logits], 1)
        return both.masked_fill(~batch.attended[:, None], torch.finfo(both.dtype).min)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax over the positions, separately for start and end."""
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the best span [B, 2] of at most 30 tokens, start ≤ end, among the possible positions of answers."""
        allowed = batch.attended if batch.answerable is None else batch.answerable
        start, end = logits.float().masked_fill(~allowed[:, None], -torch.inf).unbind(1)
        length = start.shape[1]
        pairs = torch.ones(length, length, dtype=torch.bool, device=start.device)
        # The limit of 30 tokens is that of BERT's run_squad.py.
        valid = pairs.triu() & pairs.tril(self.longest - 1)
        total = (start[:, :, None] + end[:, None, :]).masked_fill(~valid, -torch.inf)
        best = total.flatten(1).argmax(1)
        return torch.stack([best // length, best % length], 1)

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """Return spans [B, 2] from one span (start, end) counted without padding, or one per example."""
        spans = torch.as_tensor(target, device=batch.device)
        # The first real position differs between left-padded rows.
        return spans.expand(len(batch), 2) + batch.attended.long().argmax(1)[:, None]

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """Return the spans; raise ExpoundError unless they lie within the batch."""
        return super().check_target(target, batch, batch.length)

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the start and end entries [..., B, 2] of `values` [..., B, 2, L]."""
        return values.gather(-1, target.unsqueeze(-1).expand(*values.shape[:-1], 1)).squeeze(-1)

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the start's logit plus the end's."""
        return self.pick(logits, target).sum(-1)

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """Return the start's probability times the end's."""
        return self.pick(probabilities, target).prod(-1)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of both log-probabilities, [..., B]."""
        return super().log_probability(logits, target).sum(-1)

    def make_row(self, text: str, tokenizer: Any) -> dict[str, Any]:
        """Return the text as a question with a context."""
        return {"text": text, "text_pair": "It is about a model."}

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of start and end [B]; 0 for an answer outside the text, of −1."""
        labels = require_labels(batch)
        # cross_entropy expects the classes, here the positions, in dimension 1.
        losses = F.cross_entropy(to_float32(logits).transpose(1, 2), labels.clamp(min=0), reduction="none")
        return losses.mean(1).masked_fill(~(labels >= 0).all(1), 0.0)

    def shift(self, target: Tensor, start: int | Tensor) -> Tensor:
        """Return the span counted from the column `start`, a number or one per example [B, 1]."""
        return target - start

    def select_positions(self, logits: Tensor, kept: Tensor) -> Tensor:
        """Return the logits of the positions `kept` [L]."""
        return logits[..., kept]

    def pad_positions(self, logits: Tensor, before: int, after: int) -> Tensor:
        """Return logits [..., 2, before + L + after] with the lowest finite number at the new positions."""
        return F.pad(logits, (before, after), value=torch.finfo(logits.dtype).min)
