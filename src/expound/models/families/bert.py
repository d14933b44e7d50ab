"""BERT."""

from expound.models.families.record import SMALL, Attention, Family, FeedForward, Head

FAMILY = Family(
    layers="encoder.layer",
    attention=Attention(
        "attention.self.value",
        "attention.output.dense",
        norm="attention.output.LayerNorm",
    ),
    feed_forward=FeedForward(
        "intermediate.dense", "intermediate.intermediate_act_fn", "output.dense", norm="output.LayerNorm"
    ),
    head=Head("classifier", dense="@.pooler.dense", activation="tanh"),
    masked=Head(
        "cls.predictions.decoder",
        dense="cls.predictions.transform.dense",
        activation="hidden_act",
        norm="cls.predictions.transform.LayerNorm",
    ),
    after_attention="attention.output",
    small_config=SMALL,
)
