"""Where a family keeps the parts of its layers and of its head: a record a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError


@dataclass(frozen=True, slots=True)
class Head:
    """The modules after the last layer; paths start at the whole model, `@` stands for its base model.

    [dense → activation → [norm]] → output. `activation` is an activation's name, or that of the entry of the
    configuration that holds it.
    """

    output: str
    dense: str | None = None
    activation: str = ""
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """Where a family keeps the parts of a layer.

    Paths start at the layer, those of `layers` and `final_norm` at the base model.

    `value` and `output`: the attention's projections (`value_part`: which share of a fused projection holds the values,
    as (index, of how many)). `norms`: the attention's and the feed-forward's, behind them, or before them with
    `norm_first`. `feed_forward`: into and out of the wide layer; with `gate` the wide layer is activation(gate) ⊙ into
    (`gate_fused`: the first half of `into` is the gate). `shared`: the path, in each of `layers`, of the layers that
    are run again and again.
    """

    layers: str
    value: str
    output: str
    norms: tuple[str, str]
    feed_forward: tuple[str, str]
    activation: str
    head: Head
    norm_first: bool = False
    value_part: tuple[int, int] = (0, 1)
    gate: str | None = None
    gate_fused: bool = False
    final_norm: str | None = None
    shared: str | None = None

    @property
    def gated(self) -> bool:
        """Whether the wide layer is a product with a gate."""
        return self.gate_fused or self.gate is not None


BERT = Architecture(
    "encoder.layer",
    value="attention.self.value",
    output="attention.output.dense",
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    feed_forward=("intermediate.dense", "output.dense"),
    activation="intermediate.intermediate_act_fn",
    head=Head("classifier", dense="@.pooler.dense", activation="tanh"),
)
ELECTRA = replace(BERT, head=Head("classifier.out_proj", dense="classifier.dense", activation="gelu"))
ROBERTA = replace(BERT, head=Head("classifier.out_proj", dense="classifier.dense", activation="tanh"))
BIG_BIRD = replace(BERT, head=Head("classifier.out_proj", dense="classifier.dense", activation="hidden_act"))
DEBERTA = replace(
    BERT,
    value="attention.self.value_proj",
    head=Head("classifier", dense="pooler.dense", activation="pooler_hidden_act"),
)
DISTILBERT = Architecture(
    "transformer.layer",
    value="attention.v_lin",
    output="attention.out_lin",
    norms=("sa_layer_norm", "output_layer_norm"),
    feed_forward=("ffn.lin1", "ffn.lin2"),
    activation="ffn.activation",
    head=Head("classifier", dense="pre_classifier", activation="relu"),
)
ALBERT = Architecture(
    "encoder.albert_layer_groups",
    value="attention.value",
    output="attention.dense",
    norms=("attention.LayerNorm", "full_layer_layer_norm"),
    feed_forward=("ffn", "ffn_output"),
    activation="activation",
    head=Head("classifier", dense="@.pooler", activation="tanh"),
    shared="albert_layers",
)
GPT2 = Architecture(
    "h",
    value="attn.c_attn",
    value_part=(2, 3),
    output="attn.c_proj",
    norms=("ln_1", "ln_2"),
    feed_forward=("mlp.c_fc", "mlp.c_proj"),
    activation="mlp.act",
    head=Head("score"),
    norm_first=True,
    final_norm="ln_f",
)
VIT = Architecture(
    "layers",
    value="attention.v_proj",
    output="attention.o_proj",
    norms=("layernorm_before", "layernorm_after"),
    feed_forward=("mlp.fc1", "mlp.fc2"),
    activation="mlp.activation_fn",
    head=Head("classifier"),
    norm_first=True,
    final_norm="layernorm",
)
LLAMA = Architecture(
    "layers",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    norms=("input_layernorm", "post_attention_layernorm"),
    feed_forward=("mlp.up_proj", "mlp.down_proj"),
    gate="mlp.gate_proj",
    activation="mlp.act_fn",
    head=Head("score"),
    norm_first=True,
    final_norm="norm",
)
MODERNBERT = Architecture(
    "layers",
    value="attn.Wqkv",
    value_part=(2, 3),
    output="attn.Wo",
    norms=("attn_norm", "mlp_norm"),
    feed_forward=("mlp.Wi", "mlp.Wo"),
    gate_fused=True,
    activation="mlp.act",
    head=Head("classifier", dense="head.dense", activation="classifier_activation", norm="head.norm"),
    norm_first=True,
    final_norm="final_norm",
)
ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": BERT,
    "electra": ELECTRA,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "big_bird": BIG_BIRD,
    "distilbert": DISTILBERT,
    "albert": ALBERT,
    "deberta-v2": DEBERTA,
    "modernbert": MODERNBERT,
    "gpt2": GPT2,
    "vit": VIT,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
}


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The family's record; for a question answering model with the head that all families share.

    Raises:
        ExegeteError: a family without a record.
    """
    family = model.config.model_type
    if family not in ARCHITECTURES:
        raise ExegeteError(
            f"nothing is known of the layers of model type {family!r}. Known: {', '.join(sorted(ARCHITECTURES))}. "
            "A record for it goes into ARCHITECTURES in exegete/models/architecture_of.py"
        )
    found = ARCHITECTURES[family]
    spans = hasattr(model, "qa_outputs")
    return replace(found, head=Head("qa_outputs")) if spans else found


def part(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path.

    Raises:
        ExegeteError: there is none: the record does not fit this model.
    """
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise ExegeteError(f"expected {type(root).__name__} to have the part {path!r}: {error}") from error


def layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """The layers in the order in which they run; a shared one comes as often as it runs."""
    found = architecture_of(model)
    inner: Any = model
    base = (inner.get_base_model() if hasattr(inner, "get_base_model") else inner).base_model
    blocks = list(part(base, found.layers).children())
    if found.shared is None:
        return tuple(blocks)
    count = model.config.num_hidden_layers
    groups = [blocks[int(index / (count / len(blocks)))] for index in range(count)]
    return tuple(layer for group in groups for layer in part(group, found.shared).children())


def head_part(model: PreTrainedModel, path: str) -> nn.Module:
    """A part of the head; `@` stands for the base model."""
    return part(model.base_model, path[2:]) if path.startswith("@.") else part(model, path)
