"""Small models from scratch, with the tokenizer or image processor that goes with them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerFast
from transformers import ViTImageProcessorPil as ImageProcessor

from exegete.errors import ExegeteError
from exegete.training.loop.sizes import SIZES

POSITIONS = 256
VOCABULARY = 8000
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def sized(model: str | Path | PretrainedConfig, processor: Any, data: Dataset) -> PretrainedConfig:
    """The configuration with the vocabulary or picture size that the data has.

    `model`: a configuration, a .json file with `model_type`, or a name of `SIZES` (BERT for texts, ViT for images).
    """
    if isinstance(model, PretrainedConfig):
        return model
    images = "image" in data.column_names
    if str(model) in SIZES:
        fields: dict[str, Any] = SIZES[str(model)] | {"model_type": "vit" if images else "bert"}
        fields |= _picture(data) if images else {"max_position_embeddings": POSITIONS}
    else:
        fields = dict(_read(Path(model)))
    if not images:
        fields |= {"vocab_size": len(processor), "pad_token_id": processor.pad_token_id}
    try:
        return AutoConfig.for_model(**fields)
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"{model} is no configuration: {str(error).splitlines()[0]}") from error


def words_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer whose tokens are the texts' most frequent words; all others are spelt.

    The same texts give the same vocabulary in every process (a trained WordPiece depends on hash order).
    """
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    letters = sorted({letter for word in counts for letter in word})
    words = sorted(counts, key=lambda word: (-counts[word], word))
    pieces = dict.fromkeys([*SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters), *words])
    ids = {piece: index for index, piece in enumerate(list(pieces)[:vocabulary])}
    raw = Tokenizer(models.WordPiece(ids, unk_token=SPECIAL["unk_token"]))
    raw.normalizer, raw.pre_tokenizer = normalizer, splitter
    raw.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_input_names=inputs, model_max_length=POSITIONS, **SPECIAL
    )


def image_processor(data: Dataset) -> Any:
    """Pictures in the size of the data's first one, grey values from -1 to 1."""
    size, channels = _picture(data)["image_size"], _picture(data)["num_channels"]
    half = [0.5] * channels
    return ImageProcessor(size={"height": size, "width": size}, image_mean=half, image_std=half)


def _picture(data: Dataset) -> dict[str, int]:
    """An image's size, patch size (four patches a side) and channels, from the data's first image."""
    first = data[0]["image"]
    size = max(first.size)
    return {
        "image_size": size,
        "patch_size": max(1, size // 4),
        "num_channels": 1 if first.mode in {"L", "1", "I;16"} else 3,
    }


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExegeteError(f"{path} is no configuration: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ExegeteError(f"{path} is no configuration: expected a JSON object with 'model_type'")
    return content
