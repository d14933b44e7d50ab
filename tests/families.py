"""Tiny random models of usual families, and tokenizers for them."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from expound.models.layers.layer_parts import is_norm_layer, to_norm

SIZE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 130,
}
"""Sizes of a model under the names that most configurations use."""


@dataclass(frozen=True)
class Small:
    """A small model of a family.

    `tokenizer`: its kind, see below; None for images. `value`, `output`, `into`: paths of projections in a layer. `cut`:
    the part of the last layer that computes only the first position where the head reads only that.
    `in_float32`: `norms` or `rotations`, if these are computed in float32 even with more precise weights.
    """

    config: dict[str, Any]
    value: str = ""
    output: str = ""
    into: str = ""
    tokenizer: str | None = "bert"
    cut: str | None = None
    in_float32: str | None = None


def _bert(
    value: str = "attention.self.value", tokenizer: str = "bert", cut: str | None = "attention.output", **changes
):
    return Small(SIZE | changes, value, "attention.output.dense", "intermediate.dense", tokenizer, cut)


def _llama(**changes):
    config = SIZE | {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3} | changes
    return Small(config, "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "gpt2", in_float32="norms")


ROBERTA = _bert(tokenizer="roberta", pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
DISTIL_NAMES = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}  # fmt: skip
POSITIONS = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16, "share_att_key": True}
SPECIAL = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
# Windows are shorter than the texts of tests, so that they take effect.
FAMILIES = {
    "albert": Small(SIZE | {"embedding_size": 24}, "attention.value", "attention.dense", "ffn"),
    "bert": _bert(),
    "big_bird": _bert(cut=None, block_size=4, num_random_blocks=1),
    "deberta-v2": _bert("attention.self.value_proj", **POSITIONS),
    "distilbert": Small(
        {DISTIL_NAMES.get(name, name): size for name, size in SIZE.items()},
        "attention.v_lin", "attention.out_lin", "ffn.lin1",
    ),
    "electra": _bert(embedding_size=24),
    "gemma3_text": _llama(head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]),
    "gpt2": Small(
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 130, "vocab_size": 300}
        | {"bos_token_id": 2, "eos_token_id": 2},
        "attn.c_attn", "attn.c_proj", "mlp.c_fc", "gpt2",
    ),
    "llama": _llama(),
    "mistral": _llama(sliding_window=6),
    "modernbert": Small(
        SIZE | SPECIAL | {"local_attention": 8}, "attn.Wqkv", "attn.Wo", "mlp.Wi", in_float32="rotations"
    ),
    "qwen2": _llama(),
    "qwen3": _llama(head_dim=8),
    "roberta": ROBERTA,
    "vit": Small(
        SIZE | {"image_size": 8, "patch_size": 2, "num_channels": 1},
        "attention.v_proj", "attention.o_proj", "mlp.fc1", None,
    ),
    "xlm-roberta": ROBERTA,
}  # fmt: skip
"""Those with heads for classes; encoder-decoders are in `two_sided`."""
SENTENCES = [
    "a moving film about a small town and its river",
    "the plot is dull , but nobody laughs at the café's naïve jokes",
    "two women are holding packages in the rain",
    "someone's old camera works better than this brand new one !",
    "it is neither funny nor sad ; it's simply long",
    "great acting cannot save a tired story",
]
VOCABULARY = SIZE["vocab_size"]
TEXT = {name: family.config for name, family in FAMILIES.items() if family.tokenizer is not None}
ENCODERS = {name: sizes for name, sizes in TEXT.items() if FAMILIES[name].tokenizer != "gpt2"}
DECODERS = {name: sizes for name, sizes in TEXT.items() if name not in ENCODERS}
USUAL = ("bert", "mistral", "big_bird", "vit")
"""A post-norm encoder, a gated decoder that is padded on the left, block-sparse attention with hooks, and images."""


def sweep_others(names: Iterable[str], usual: Iterable[str] = USUAL) -> list[Any]:
    """Parameters of a test: the usual names on every run, and all others, marked `sweep`, in `make sweep`."""
    parameters: list[Any] = []
    for name in names:
        if name in usual:
            parameters.append(name)
        elif os.environ.get("EXPOUND_SWEEP"):
            parameters.append(pytest.param(name, marks=pytest.mark.sweep))
    return parameters


def rotate(firsts: Iterable[Any], seconds: Sequence[Any]) -> list[Any]:
    """Pairs of a test: each of the first with one of the second on every run, in turn, and all pairs in `make sweep`."""
    pairs: list[Any] = []
    for number, first in enumerate(firsts):
        for place, second in enumerate(seconds):
            if place == number % len(seconds):
                pairs.append((first, second))
            elif os.environ.get("EXPOUND_SWEEP"):
                pairs.append(pytest.param(first, second, marks=pytest.mark.sweep))
    return pairs


def tiny(
    family: str, head: str = "SequenceClassification", *, seed: int = 0, dtype=torch.float32, **changes: Any
) -> Any:
    """A random model of the family, its biases and norms randomized too, in evaluation mode, without a processor."""
    torch.manual_seed(seed)
    known = FAMILIES[family]
    config = hf.AutoConfig.for_model(family, **(known.config | {"num_labels": 3} | changes))
    kind = head if known.tokenizer else "ImageClassification"
    model = getattr(hf, f"AutoModelFor{kind}").from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).eval()


@functools.cache
def tokenizer(kind: str = "bert") -> hf.PreTrainedTokenizerFast:
    """A trained tokenizer.

    Kinds: `bert` (WordPiece, [CLS] a [SEP] b [SEP]), `roberta` (byte-level, <s> a </s></s> b </s>) and `gpt2`.
    """
    if kind == "bert":
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.normalizer, raw.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        raw.model = models.WordPiece(_pieces(raw, special), unk_token="[UNK]")
        raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        names = {
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        }
        return hf.PreTrainedTokenizerFast(
            tokenizer_object=raw, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **names
        )
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "gpt2":
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["<pad>", "<unk>", "<|end|>"], initial_alphabet=alphabet
        )
        raw.train_from_iterator(SENTENCES, trainer)
        return hf.PreTrainedTokenizerFast(
            tokenizer_object=raw, bos_token="<|end|>", eos_token="<|end|>", unk_token="<|end|>"
        )
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    raw.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    )
    raw.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", cls_token="<s>", pad_token="<pad>", eos_token="</s>", sep_token="</s>",
        unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip


def _pieces(raw: Tokenizer, special: list[str]) -> dict[str, int]:
    """A WordPiece vocabulary, the same in every process, as that of the library's own trainer is not."""
    learner = Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = raw.normalizer, raw.pre_tokenizer
    learner.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=VOCABULARY // 2 - len(special)))
    learned = sorted(learner.get_vocab())
    return {piece: number for number, piece in enumerate([*special, *learned, *(f"##{piece}" for piece in learned)])}


def processor(family: str) -> Any:
    """The tokenizer or image processor that goes with a family's tiny model."""
    kind = FAMILIES[family].tokenizer
    if kind is None:
        return hf.ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.5], image_std=[0.5])
    return tokenizer(kind)


def examples(family: str, count: int = 5) -> list[Any]:
    """Texts of uneven length, or pictures."""
    if FAMILIES[family].tokenizer is None:
        from PIL import Image
        from sklearn.datasets import load_digits

        return [Image.fromarray((image * 15).astype("uint8")) for image in load_digits().images[:count]]
    return [SENTENCES[i % len(SENTENCES)][: 60 - 9 * i] for i in range(count)]


def replace_rms_norms(model: nn.Module) -> None:
    """Replace transformers' RMSNorms by torch's, with the same weights."""
    # transformers' own compute in float32 even in a model in float64, far above the tolerance of these tests
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not is_norm_layer(child) or isinstance(child, nn.RMSNorm | nn.LayerNorm):
                continue
            original = to_norm(child)
            assert original.weight is not None
            make = nn.RMSNorm if not original.centered else functools.partial(nn.LayerNorm, bias=False)
            norm: Any = make(original.weight.shape, eps=original.eps, dtype=original.weight.dtype)
            norm.weight.data.copy_(original.weight)
            setattr(parent, name, norm)
