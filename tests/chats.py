"""A tiny model that chats, and examples for it."""

from __future__ import annotations

import copy

import torch

import families
from expound.models.generation.model import GeneratingModel

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SOURCES = {"doc 1": "a moving film about a small town", "doc 2": " two women are holding packages .\n"}
CHAT = {
    "messages": [
        {"role": "system", "content": "it is simply long"},
        {"role": "user", "content": "the plot"},
        {"role": "assistant", "content": "is dull"},
        {"role": "user", "content": "{sources}\n\nwhat is small ?"},
    ],
    "sources": SOURCES,
    "response": " the town . Two women laugh at it .",
}


def tokenizer(template=TEMPLATE, kind="gpt2"):
    """A byte-level tokenizer with a chat template."""
    made = copy.deepcopy(families.tokenizer(kind))
    made.chat_template = template
    return made


def chatting(template=TEMPLATE, dtype=torch.float64):
    """A model with random weights that answers chats of 260 tokens at most."""
    model = families.tiny("llama", "CausalLM", dtype=dtype, seed=1, max_position_embeddings=260)
    return GeneratingModel(model, tokenizer(template))
