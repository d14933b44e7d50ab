"""RoBERTa and XLM-R."""

from dataclasses import replace

from expound.models.families.bert import FAMILY as BERT
from expound.models.families.record import SMALL, Head

FAMILY = replace(
    BERT,
    head=Head("classifier.out_proj", dense="classifier.dense", activation="tanh"),
    masked=Head("lm_head.decoder", dense="lm_head.dense", activation="gelu", norm="lm_head.layer_norm"),
    small_config=SMALL | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    tokenizer="roberta",
)
