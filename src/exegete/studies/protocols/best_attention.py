"""The most plausible attention layer and head, chosen on the data that they are judged on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from datasets import Dataset
from torch import Tensor

from exegete.explainers.learned.learned_attention import mean_head_logits, softmax_over
from exegete.metrics import Metric
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.encoding.encode import make_batches
from exegete.models.encoding.labels import renumber_labels


@torch.no_grad()
def score_best_attention(model: ExplainedModel, data: Dataset, judge: Metric) -> tuple[float, float]:
    """Return the mean of a metric on rationales for the best layer's mean attention logits, and for the best head.

    This is `ParameterisedAttention` with one non-zero coefficient (Fernandes et al. 2022, Table 2: the rows that are
    supervised, since people's rationales choose the layer or head).
    """
    rows, layers, heads = renumber_labels(model, data), list[Tensor](), list[Tensor]()
    for indices in make_batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        outputs = model(batch, capture=Capture(heads=True))
        logits, target = mean_head_logits(model, batch, outputs), model.resolve_target(batch, None, outputs.logits)
        value = partial(judge.evaluate, model, batch, target=target)
        for found, each in ((layers, logits.mean(2)), (heads, logits.flatten(1, 2))):
            found.append(torch.stack([value(scores)[judge.name] for scores in _attention_maps(batch, each)]))
    best_layer, best_head = (torch.cat(each, 1).nanmean(1).max().item() for each in (layers, heads))
    return best_layer, best_head


def _attention_maps(batch: Batch, logits: Tensor) -> Iterator[Tensor]:
    """Yield the distribution over positions of each of K attention logits [B, K, L], with 0 at special tokens."""
    for each in logits.unbind(1):
        yield softmax_over(each, batch.attended).masked_fill(~batch.content, 0)
