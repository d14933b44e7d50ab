"""A model whose probabilities can be added up by hand, for the examples of metrics."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

from expound.explainers import explainer
from expound.metrics import metric
from expound.models import ExplainedModel

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = {"good": 0.3, "fine": 0.2, "bad": -0.1}
START = 0.2


class CountingForSequenceClassification(PreTrainedModel):  # type: ignore[misc]  # transformers is untyped
    """P(positive) is .2, and .3 more for each "good", .2 more for each "fine", .1 less for each "bad"."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(len(SPECIAL) + len(WORDS), 1)
        self.post_init()
        # After `post_init`, which draws weights at random.
        values = [[0.0]] * len(SPECIAL) + [[value] for value in WORDS.values()]
        self.embeddings.weight = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding layer: one dimension, the word's part of the probability."""
        return self.embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Return the logarithms of the probabilities as logits [B, 2], and the embeddings as the hidden states."""
        values = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        read = values[..., 0] if attention_mask is None else values[..., 0] * attention_mask
        positive = (START + read.sum(1)).clamp(1e-9, 1 - 1e-9)
        logits = torch.stack([1 - positive, positive], 1).log()
        return SequenceClassifierOutput(logits=logits, hidden_states=(values, values))


@cache
def counting_model() -> ExplainedModel:
    """Return the model of the examples: P(positive) = .2 + .3 per "good" + .2 per "fine" − .1 per "bad"."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in names.items()}
    )
    config = PretrainedConfig(
        vocab_size=len(vocabulary),
        num_hidden_layers=1,
        num_attention_heads=1,
        id2label={0: "negative", 1: "positive"},
        pad_token_id=0,
    )
    return ExplainedModel(CountingForSequenceClassification(config).eval(), fast)


def explain(spec: str, text: str) -> list[float]:
    """Return a method's scores of a text's words for the prediction of `counting_model`, to three digits."""
    model = counting_model()
    batch = model.encode([text])
    return [round(score, 3) + 0.0 for score in explainer(spec).attribute(model, batch)[batch.content].tolist()]


def judge(spec: str, text: str | list[str], scores: list[float], **columns: Any) -> float:
    """Return a metric's value for the scores of a text's words, by `counting_model`, to three digits.

    Several texts are judged as one batch, whose words' scores follow each other; the value is the first text's.
    """
    model = counting_model()
    batch = model.encode([{"text": each, **columns} for each in ([text] if isinstance(text, str) else text)])
    attribution = torch.zeros(batch.content.shape)
    attribution[batch.content] = torch.tensor(scores, dtype=attribution.dtype)
    made = metric(spec)
    return round(float(made.evaluate(model, batch, attribution)[made.name][0]), 3)
