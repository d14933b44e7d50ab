"""Mistral."""

from dataclasses import replace

from exegete.models.families.llama import FAMILY as LLAMA

FAMILY = replace(LLAMA, small_config=LLAMA.small_config | {"sliding_window": 6})
