"""Records of model families by transformers' `model_type`; each is a file and a line here."""

from __future__ import annotations

from expound.data.registry import Registry
from expound.models.families.record import Attention, Decoder, Family, FeedForward, Head, Hooks

FAMILIES: Registry[Family] = Registry(
    "model family",
    "expound.families",
    {
        "albert": "albert:FAMILY",
        "bart": "bart:FAMILY",
        "bert": "bert:FAMILY",
        "big_bird": "big_bird:FAMILY",
        "deberta-v2": "deberta_v2:FAMILY",
        "distilbert": "distilbert:FAMILY",
        "electra": "electra:FAMILY",
        "gemma3_text": "gemma3:FAMILY",
        "gpt2": "gpt2:FAMILY",
        "llama": "llama:FAMILY",
        "marian": "marian:FAMILY",
        "mbart": "mbart:FAMILY",
        "mistral": "mistral:FAMILY",
        "modernbert": "modernbert:FAMILY",
        "mt5": "t5:FAMILY",
        "pegasus": "mbart:FAMILY",
        "qwen2": "llama:FAMILY",
        "qwen3": "qwen3:FAMILY",
        "roberta": "roberta:FAMILY",
        "t5": "t5:FAMILY",
        "vit": "vit:FAMILY",
        "xlm-roberta": "roberta:FAMILY",
    },
    package="expound.models.families",
)

__all__ = ["FAMILIES", "Attention", "Decoder", "Family", "FeedForward", "Head", "Hooks"]
