"""A small random model and examples for contract tests."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForSequenceClassification,
)

from expound.data import generated_tokenizer, load_data
from expound.models import Batch, ExplainedModel, load

SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 130, "bos_token_id": 2, "eos_token_id": 2},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    | {"eos_token_id": 2, "decoder_start_token_id": 1},
}
"""Configurations of small language models."""


def random_model(seed: int = 0) -> ExplainedModel:
    """Return a BERT of two layers with random weights, in float64, with the tokenizer of the generated corpus."""
    torch.manual_seed(seed)
    tokenizer = generated_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = BertForSequenceClassification(config).double().eval()
    with torch.no_grad():
        # freshly initialized biases are 0 and norms are 1: noise makes mistakes with them visible
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return ExplainedModel(model, tokenizer)


def random_language_model(family: str, seed: int = 0) -> tuple[ExplainedModel, Batch]:
    """Return a small random language model in float64 (`gpt2` a decoder, `t5` an encoder-decoder) and two responses."""
    torch.manual_seed(seed)
    tokenizer = generated_tokenizer()
    changes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(family, **SMALL[family] | changes)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: Any = load((kind.from_config(config).double().eval(), tokenizer), task="generation")
    return model, model.batch([[7, 8, 9, 10, 11], [12, 13, 14]], [[15, 16], [17, 18, 19]])


shared_model = functools.cache(random_model)
shared_language_model = functools.cache(random_language_model)
"""The same models for all tests that do not change them."""


def make_examples(count: int = 4) -> list[dict[str, object]]:
    """Return generated reviews of different lengths, as dicts with text, label and rationale."""
    return [dict(row) for row in _load_examples(count)]


@functools.cache
def _load_examples(count: int) -> list[dict[str, object]]:
    # the corpus is generated anew by every call of load_data, and every contract test asks for it
    return list(load_data("generated", "dev", limit=count))


def select_example(batch: Batch, row: int) -> Batch:
    """Return a batch of one example, without padding."""
    return batch.select([row]).trim_padding()[0]


class DifferentiableLayerNorm(nn.Module):
    """A LayerNorm made of elementary operations: the third derivative of torch's own is wrong.

    Checking the gradient of a loss that contains a second derivative needs the third.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs [..., d] centered and scaled over the last dimension."""
        centered = inputs - inputs.mean(-1, keepdim=True)
        return self.weight * centered / (centered.square().mean(-1, keepdim=True) + self.eps).sqrt() + self.bias


def replace_layer_norms(module: nn.Module) -> None:
    """Replace the LayerNorms of a model by ones with the same weights that can be differentiated repeatedly."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, DifferentiableLayerNorm(child))
