"""Mistral."""

from dataclasses import replace

from expound.models.families.llama import FAMILY as LLAMA

# The window is shorter than the texts of tests, so that it takes effect.
FAMILY = replace(LLAMA, small_config=LLAMA.small_config | {"sliding_window": 6})
