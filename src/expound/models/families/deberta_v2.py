"""DeBERTa, second and third version."""

from dataclasses import replace

from expound.models.families.bert import FAMILY as BERT
from expound.models.families.record import SMALL, Head, Hooks

POSITIONS = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16, "share_att_key": True}
FAMILY = replace(
    BERT,
    # Its attention adds terms of relative positions and does not go through transformers' interface.
    attention=replace(
        BERT.attention,
        value="attention.self.value_proj",
        hooks=Hooks("query_proj", "key_proj", "value_proj"),
    ),
    head=Head("classifier", dense="pooler.dense", activation="pooler_hidden_act"),
    small_config=SMALL | POSITIONS,
)
