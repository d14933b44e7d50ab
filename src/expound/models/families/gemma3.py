"""Gemma 3, which also normalizes the outputs of attention and feed-forward."""

from dataclasses import replace

from expound.models.families.llama import FAMILY as LLAMA

FAMILY = replace(
    LLAMA,
    attention=replace(LLAMA.attention, norm_of_output="post_attention_layernorm"),
    feed_forward=replace(
        LLAMA.feed_forward, norm="pre_feedforward_layernorm", norm_of_output="post_feedforward_layernorm"
    ),
    # The window is shorter than the texts of tests, so that it takes effect.
    small_config=LLAMA.small_config
    | {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
)
