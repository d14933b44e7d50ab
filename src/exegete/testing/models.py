"""A small random model and texts for contract tests."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

from exegete.data import generated_tokenizer, load_data
from exegete.models import Batch, ExplainedModel


def random_model(seed: int = 0) -> ExplainedModel:
    """A BERT of two layers with random weights and the generated corpus's tokenizer, in float64."""
    torch.manual_seed(seed)
    tokenizer = generated_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = BertForSequenceClassification(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return ExplainedModel(model, tokenizer)


def texts(count: int = 4) -> list[dict[str, object]]:
    """Generated reviews of uneven length, with rationales."""
    return [dict(row) for row in load_data("generated", "dev", limit=count)]


def alone(batch: Batch, row: int) -> Batch:
    """One example without its padding."""
    return batch.select([row]).trimmed()[0]
