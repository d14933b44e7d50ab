"""The task of a generated text as the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models.batch import Batch, find_predicting_columns, find_response_positions, require_response, to_float32
from expound.models.tasks.base import TEXT, OutputKind, Task, require_integers

LOGITS_AT_ONCE = 2**23
"""The most logits that are turned into probabilities at a time: 32 MB in float32."""


class Generation(Task):
    """A span of response tokens, each predicted from everything before it; explained by its log-probability.

    Its "logits" are a table [B, R, 2] of each response token's log-probability and logit, or [B, R, 3] with the foil's
    logit, zero after a response's end. All scores are computed from it; it takes no memory for the vocabulary.
    """

    name = "generation"
    target_dimensions = 2
    is_read_at_positions = True
    is_generated = True
    sample: ClassVar = {"prompt": TEXT, "response": " It is short."}
    properties: ClassVar = frozenset({"one_target", "one_choice"})
    output: OutputKind | None = "log_prob"

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the table [B, R, 2 or 3], in float32 at least."""
        full, ids, real = self.read_logits(output, batch)
        chosen = ids if batch.foil is None else torch.cat([ids, batch.foil[:, : ids.shape[1], None]], -1)
        tables = []
        # A few tokens at a time: the logits of a long response over a large vocabulary are the largest tensor by far.
        count = max(1, LOGITS_AT_ONCE // (full.shape[0] * full.shape[2]))
        for few, own in zip(full.split(count, 1), chosen.split(count, 1), strict=True):
            part = to_float32(few)
            tables.append(torch.cat([part.log_softmax(-1).gather(-1, own[..., :1]), part.gather(-1, own)], -1))
        return torch.cat(tables, 1) * real[..., None]

    def distribution(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits over the vocabulary, [B, R, V]."""
        return to_float32(self.read_logits(output, batch)[0])

    @staticmethod
    def read_logits(output: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [B, R, V] at the prediction of each response token, its id [B, R, 1], and a mask [B, R]."""
        assert batch.response is not None
        positions, real = find_response_positions(batch.response)
        columns, full = find_predicting_columns(batch.response), output.logits
        index = positions - 1
        # Models that take `logits_to_keep` return the predicting columns only, others all positions.
        if full.shape[1] == len(columns):
            index = torch.searchsorted(columns, index)
        # In the usual case, one response length without padding, no copy over the vocabulary is made.
        if full.shape[1] != index.shape[1] or not real.all():
            full = full[torch.arange(len(batch), device=batch.device)[:, None], index]
        return full, batch.inputs["input_ids"].gather(1, positions)[..., None], real

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the table itself."""
        return logits

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the span [B, 2] of the whole response."""
        assert batch.response is not None
        end = batch.response.sum(1)
        return torch.stack([torch.zeros_like(end), end], 1)

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """Return spans [B, 2] from one span or token number for all responses, or a list with one per response."""
        targets = target if isinstance(target, list) else [target] * len(batch)
        try:
            spans = []
            for span in targets:
                spans.append(span if isinstance(span, tuple | list) else (int(span), int(span) + 1))
            return torch.as_tensor(spans, device=batch.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ExpoundError(
                "a target of generated text is a span (start, end) of response tokens or a token's number, "
                f"or a list of those, got {target!r:.80}"
            ) from error

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """Return the spans; raise ExpoundError unless each lies within its response."""
        require_integers(target, [len(batch), 2])
        count = require_response(batch).sum(1)
        wrong = (target[:, 0] < 0) | (target[:, 0] >= target[:, 1]) | (target[:, 1] > count)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ExpoundError(
                f"expected a span start < end within the {int(count[row])} tokens of response {row}, "
                f"got {tuple(target[row].tolist())}"
            )
        return target

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the sums [..., B, k] of the table [..., B, R, k] over the span."""
        step = torch.arange(values.shape[-2], device=values.device)
        inside = (step >= target[:, :1]) & (step < target[:, 1:])
        return (values * inside[..., None]).sum(-2)

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the span's logits, minus the foils' logits if there are foils."""
        picked = self.pick(logits, target)
        if picked.shape[-1] > 2:
            return picked[..., 1] - picked[..., 2]
        return picked[..., 1]

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """Return the span's probability, given everything before it."""
        return self.pick(probabilities, target)[..., 0].exp()

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the span's log-probability, given everything before it."""
        return self.pick(logits, target)[..., 0]

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the span's output, minus the foil's output if there is one; both continue the same prefix."""
        picked = self.pick(logits, target)
        has_foils = picked.shape[-1] > 2
        # The normalizer of a position cancels out, so log-probabilities differ by as much as logits.
        if self.output == "logit" or (self.output == "log_prob" and has_foils):
            return self.logit(logits, target)
        if self.output == "log_prob":
            return picked[..., 0]
        if not has_foils:
            return picked[..., 0].exp()
        # log p(foil) = log p(token) − logit(token) + logit(foil).
        return picked[..., 0].exp() - (picked[..., 0] - picked[..., 1] + picked[..., 2]).exp()

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean −log p of the response's tokens [B]; the whole response is the label."""
        whole = self.predict(logits, batch)
        return -self.log_probability(logits, whole) / self.count_tokens(whole)

    def count_tokens(self, target: Tensor) -> Tensor:
        """Return the number of response tokens in each span."""
        return target[:, 1] - target[:, 0]
