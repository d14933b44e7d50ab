"""Timed steps of this machine, by a model as small studies have it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from exegete.studies.runs.speed import Speed, keep, known
from exegete.studies.runs.store import Store

ROWS, TOKENS, STEPS = 16, 32, 2
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def measured(store: Store) -> Speed:
    """This machine's speed; timed the first time, in a few seconds."""
    return known(store) or keep(store, _timed())


def _timed() -> Speed:
    with torch.random.fork_rng():
        model: Any = BertForSequenceClassification(BertConfig(**SIZES))
        ids = torch.randint(5, 30000, (ROWS, TOKENS))
    step = torch.optim.AdamW(model.parameters(), fused=True)
    labels = torch.zeros(ROWS, dtype=torch.long)
    passed = 2.0 * ids.numel() * sum(weight.numel() for weight in model.bert.encoder.parameters())

    def train(low: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = model(ids, labels=labels).loss
        loss.backward()
        step.step()
        step.zero_grad()

    training, bfloat16 = (3 * passed / _seconds(partial(train, low)) for low in (False, True))
    with torch.no_grad():
        return Speed(training, bfloat16, passed / _seconds(lambda: model(ids)))


def _seconds(step: Callable[[], Any]) -> float:
    """CPU seconds of a step, after one that is not counted."""
    step()
    begun = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - begun) / STEPS
