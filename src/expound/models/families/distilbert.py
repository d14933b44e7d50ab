"""DistilBERT."""

from expound.models.families.record import SMALL, Attention, Family, FeedForward, Head

NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}
FAMILY = Family(
    layers="transformer.layer",
    attention=Attention("attention.v_lin", "attention.out_lin", norm="sa_layer_norm"),
    feed_forward=FeedForward("ffn.lin1", "ffn.activation", "ffn.lin2", norm="output_layer_norm"),
    head=Head("classifier", dense="pre_classifier", activation="relu"),
    masked=Head("vocab_projector", dense="vocab_transform", activation="activation", norm="vocab_layer_norm"),
    small_config={NAMES.get(name, name): size for name, size in SMALL.items()},
)
