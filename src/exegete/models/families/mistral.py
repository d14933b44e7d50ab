"""Mistral."""

from dataclasses import replace

from exegete.models.families.llama import FAMILY as LLAMA

FAMILY = replace(LLAMA, small=LLAMA.small | {"sliding_window": 6})
