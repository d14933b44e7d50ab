"""ALBERT."""

from expound.models.families.record import SMALL, Attention, Family, FeedForward, Head

FAMILY = Family(
    layers="encoder.albert_layer_groups",
    shared="albert_layers",
    attention=Attention("attention.value", "attention.dense", norm="attention.LayerNorm"),
    feed_forward=FeedForward("ffn", "activation", "ffn_output", norm="full_layer_layer_norm"),
    # The pooler is a linear layer itself; BERT has a module around one.
    head=Head("classifier", dense="@.pooler", activation="tanh"),
    small_config=SMALL | {"embedding_size": 24},
)
