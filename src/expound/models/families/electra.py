"""ELECTRA."""

from dataclasses import replace

from expound.models.families.bert import FAMILY as BERT
from expound.models.families.record import SMALL, Head

FAMILY = replace(
    BERT,
    head=Head("classifier.out_proj", dense="classifier.dense", activation="gelu"),
    small_config=SMALL | {"embedding_size": 24},
)
