"""BigBird."""

from dataclasses import replace

from expound.models.families.bert import FAMILY as BERT
from expound.models.families.record import SMALL, Head, Hooks

FAMILY = replace(
    BERT,
    # Its attention does not go through transformers' interface.
    attention=replace(BERT.attention, hooks=Hooks("query", "key", "value")),
    head=Head("classifier.out_proj", dense="classifier.dense", activation="hidden_act"),
    after_attention=None,
    small_config=SMALL | {"block_size": 4, "num_random_blocks": 1},
)
