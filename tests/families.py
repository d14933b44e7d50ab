"""Tiny random models of every family that has a record, and tokenizers for them."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from expound.models.families import FAMILIES as RECORDS
from expound.models.families.record import SMALL

SENTENCES = [
    "a moving film about a small town and its river",
    "the plot is dull , but nobody laughs at the café's naïve jokes",
    "two women are holding packages in the rain",
    "someone's old camera works better than this brand new one !",
    "it is neither funny nor sad ; it's simply long",
    "great acting cannot save a tired story",
]
FAMILIES = {name: family for name, family in RECORDS.items() if family.decoder is None}
"""Those with heads for classes; encoder-decoders are in `two_sided`."""
SIZE = SMALL
VOCABULARY = SIZE["vocab_size"]
TEXT = {name: family.small_config for name, family in FAMILIES.items() if family.tokenizer is not None}
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


def tiny(
    family: str, head: str = "SequenceClassification", *, seed: int = 0, dtype=torch.float32, **changes: Any
) -> Any:
    """A random model of the family, its biases and norms randomized too, in evaluation mode, without a processor."""
    torch.manual_seed(seed)
    known = FAMILIES[family]
    config = hf.AutoConfig.for_model(family, **(known.small_config | {"num_labels": 3} | changes))
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
