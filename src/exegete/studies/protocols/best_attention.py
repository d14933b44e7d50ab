"""The most plausible attention layer and head, chosen on the data that they are judged on."""

from __future__ import annotations

from functools import partial

import torch
from datasets import Dataset
from torch import Tensor

from exegete.explainers.batches import make_batches
from exegete.explainers.learned.learned_attention import mean_head_logits, softmax_over
from exegete.metrics import Metric
from exegete.models import Capture, ExplainedModel
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
        for found, maps in ((layers, logits.mean(2)), (heads, logits.flatten(1, 2))):
            values = []
            for each in maps.unbind(1):
                # The distribution over positions, with 0 at special tokens.
                scores = softmax_over(each, batch.attended).masked_fill(~batch.content, 0)
                values.append(value(scores)[judge.name])
            found.append(torch.stack(values))
    return torch.cat(layers, 1).nanmean(1).max().item(), torch.cat(heads, 1).nanmean(1).max().item()
