"""What is known of model families, by transformers' `model_type`: a file and a line each."""

from __future__ import annotations

from exegete.data.registry import Registry
from exegete.models.families.record import Attention, Family, FeedForward, Head, Hooks

FAMILIES: Registry[Family] = Registry(
    "model family",
    "exegete.families",
    {
        "albert": "albert:FAMILY",
        "bert": "bert:FAMILY",
        "big_bird": "big_bird:FAMILY",
        "deberta-v2": "deberta_v2:FAMILY",
        "distilbert": "distilbert:FAMILY",
        "electra": "electra:FAMILY",
        "gpt2": "gpt2:FAMILY",
        "llama": "llama:FAMILY",
        "mistral": "mistral:FAMILY",
        "modernbert": "modernbert:FAMILY",
        "qwen2": "llama:FAMILY",
        "qwen3": "qwen3:FAMILY",
        "roberta": "roberta:FAMILY",
        "vit": "vit:FAMILY",
        "xlm-roberta": "roberta:FAMILY",
    },
    package="exegete.models.families",
)

__all__ = ["FAMILIES", "Attention", "Family", "FeedForward", "Head", "Hooks"]
