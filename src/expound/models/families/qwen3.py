"""Qwen3, whose queries and keys are normalized."""

from dataclasses import replace

from expound.models.families.llama import FAMILY as LLAMA

FAMILY = replace(LLAMA, small_config=LLAMA.small_config | {"head_dim": 8})
