"""Marian."""

from dataclasses import replace

from expound.models.families.bart import FAMILY as BART

FAMILY = replace(
    BART,
    small_config=BART.small_config | {"decoder_vocab_size": 300, "scale_embedding": True, "decoder_start_token_id": 1},
)
