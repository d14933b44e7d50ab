"""The model a run starts from: pretrained or from scratch, with the head that the data needs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from datasets import ClassLabel, Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers import ViTImageProcessorPil as ImageProcessor

from exegete.data import generated_tokenizer
from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.models.encoding.labels import match_labels
from exegete.models.layers.head_activation import restore_head_activation
from exegete.models.loading.checkpoint import check_config, check_files, describe_load_errors
from exegete.models.loading.load import HEADS, load
from exegete.training.loop.data import is_generation_data
from exegete.training.loop.options import SIZES, names_new_model

Source: TypeAlias = str | Path | PretrainedConfig | PreTrainedModel


def load_starting_model(
    model: Source, data: Dataset, processing_class: Any = None, *, max_length: int | None = None, seed: int = 0
) -> ExplainedModel:
    """The model before its first step.

    Args:
        model: a Hugging Face model, a folder or hub name of one, or a configuration to train from scratch (an object,
            a .json file, or one of `SIZES`).
        data: rows in canonical form; they decide the head and name its outputs. Where a fine-tuned model's outputs have
            these names already, they keep their order, and data has to be renumbered, see `align_labels`.
        processing_class: tokenizer or image processor, or the path of one; default: what was saved with the model, and
            from scratch one made from the data.
        max_length: tokens that a text may have in training; the saved tokenizer does not keep it.
        seed: what the new weights depend on.

    Raises:
        ExegeteError: nothing there, no labels in the data, or a processor that does not fit.
    """
    require_labels(data)
    set_seed(seed)
    if is_generation_data(data):
        return _load_language_model(model, processing_class, max_length)
    if isinstance(model, PreTrainedModel):
        _require_outputs(model, data)
        return ExplainedModel(model, _load_processor(processing_class, data), max_length=max_length)
    if is_from_scratch(model):
        processor = _load_processor(processing_class, data) or _make_processor(data)
        config = make_config(model, processor, data)
        _set_labels(config, data)
        return ExplainedModel(_head_class(data).from_config(config), processor, max_length=max_length)
    return _load_pretrained(str(model), data, processing_class, max_length)


def _load_language_model(model: Source, processing_class: Any, max_length: int | None) -> ExplainedModel:
    """A causal language model, on the CPU as all models before their first step."""
    if is_from_scratch(model):
        raise ExegeteError("a language model is not trained from scratch here: give its folder as the model")
    source: Any = model if isinstance(model, PreTrainedModel) else str(model)
    where = None if isinstance(model, PreTrainedModel) else "cpu"
    made = load(source, _tokenizer(processing_class), where, task="generation", max_length=max_length)
    if made.config.is_encoder_decoder:
        raise ExegeteError("an encoder with a decoder is explained, not trained: give a decoder alone")
    return made


def _tokenizer(given: Any) -> Any:
    return AutoTokenizer.from_pretrained(str(given)) if isinstance(given, str | Path) else given


def is_from_scratch(model: Source) -> bool:
    """Whether a source means a model from scratch."""
    if isinstance(model, PreTrainedModel):
        return False
    return isinstance(model, PretrainedConfig) or names_new_model(str(model))


def require_labels(data: Dataset) -> None:
    """Raises ExegeteError unless every row can be learned from."""
    if not len(data):
        raise ExegeteError("there are no rows to train on")
    if "answer" in data.column_names or is_generation_data(data):
        return
    label = data.features.get("label")
    if label is None:
        raise ExegeteError(f"training needs a column 'label' or 'answer'; there are: {', '.join(data.column_names)}")
    kind = str(getattr(label, "dtype", label))
    if not isinstance(label, ClassLabel) and not kind.startswith("float"):
        raise ExegeteError(
            f"the column 'label' is {kind}: expected one ClassLabel a row, or one float for a regression"
        )
    no_label = (None, -1) if isinstance(label, ClassLabel) else (None,)
    for row, value in enumerate(data["label"][:]):
        if value in no_label or math.isnan(value):
            raise ExegeteError(f"row {row} has no label: leave such rows out of training")


def label_names(data: Dataset) -> list[str] | None:
    """The classes in their order; None for a regression and for spans."""
    label = data.features.get("label")
    return list(label.names) if isinstance(label, ClassLabel) else None


def align_labels(model: ExplainedModel, data: Dataset) -> Dataset:
    """The data, its classes in the order of the model's outputs where those are named alike; else as it is."""
    places = _label_positions(label_names(data) or [], model.labels)
    if all(number == place for number, place in places.items()):
        return data
    for column in [name for name, feature in data.features.items() if feature == data.features["label"]]:
        values = [places.get(value, value) for value in data[column][:]]
        data = data.remove_columns(column).add_column(column, values, feature=ClassLabel(names=list(model.labels)))
    return data


def _label_positions(names: list[str], known: tuple[str, ...]) -> Mapping[int, int]:
    """Where each name is among the known ones, if they are the same one by one; else each where it is."""
    places = match_labels(names, known)
    same = len(names) == len(known) == len(set(places.values()))
    return places if same else {number: number for number in range(len(names))}


def _require_outputs(model: PreTrainedModel, data: Dataset) -> None:
    names, outputs = label_names(data), model.config.num_labels
    if names is not None and len(names) != outputs:
        raise ExegeteError(f"the model has {outputs} outputs, the data {len(names)} classes")
    if names is None and "answer" not in data.column_names and outputs != 1:
        raise ExegeteError(f"the model has {outputs} outputs, a regression has one")
    _set_labels(model.config, data)


def _load_pretrained(name: str, data: Dataset, processing_class: Any, max_length: int | None) -> ExplainedModel:
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise ExegeteError(f"there is no model at {name}")
    check_files(name)
    with describe_load_errors(name, "model to fine-tune"):
        config = AutoConfig.from_pretrained(name)
        check_config(name, config)
        _set_labels(config, data)
        options = {"config": config, "ignore_mismatched_sizes": True, "use_safetensors": True}
        model = restore_head_activation(_head_class(data).from_pretrained(name, **options))
        processor = _load_processor(processing_class or name, data)
    return ExplainedModel(model, processor, max_length=max_length)


def _head_class(data: Dataset) -> Any:
    if "answer" in data.column_names:
        return HEADS["ForQuestionAnswering"]
    return HEADS["ForImageClassification" if "image" in data.column_names else "ForSequenceClassification"]


def _set_labels(config: PretrainedConfig, data: Dataset) -> None:
    """The head's outputs, named as the data names them; where they were named so already, they keep their order."""
    names = label_names(data)
    if names is not None:
        places = _label_positions(names, tuple(str(name) for _, name in sorted(config.id2label.items())))
        names = [names[number] for number in sorted(places, key=places.__getitem__)]
        config.id2label, config.label2id = dict(enumerate(names)), {name: index for index, name in enumerate(names)}
        config.problem_type = "single_label_classification"
    elif "answer" not in data.column_names:
        config.num_labels, config.problem_type = 1, "regression"


def _load_processor(processing_class: Any, data: Dataset) -> Any:
    if not isinstance(processing_class, str | Path):
        return processing_class
    loader = AutoImageProcessor if "image" in data.column_names else AutoTokenizer
    try:
        return loader.from_pretrained(str(processing_class))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ExegeteError(f"no processor could be loaded from {str(processing_class)!r}: {first}") from error


def _make_processor(data: Dataset) -> Any:
    if "image" in data.column_names:
        return make_image_processor(data)
    if data.info.description.partition("?")[0] == "generated":
        return generated_tokenizer()
    return make_word_tokenizer(
        text for name in ("text", "text_pair") if name in data.column_names for text in data[name]
    )


POSITIONS = 256
VOCABULARY = 8000
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def make_config(model: str | Path | PretrainedConfig, processor: Any, data: Dataset) -> PretrainedConfig:
    """The configuration with the vocabulary or picture size that the data has.

    `model`: a configuration, a .json file with `model_type`, or a name of `SIZES` (BERT for texts, ViT for images).
    """
    if isinstance(model, PretrainedConfig):
        return model
    images = "image" in data.column_names
    if str(model) in SIZES:
        fields: dict[str, Any] = SIZES[str(model)] | {"model_type": "vit" if images else "bert"}
        fields |= _image_facts(data) if images else {"max_position_embeddings": POSITIONS}
    else:
        fields = dict(_read_config(Path(model)))
    if not images:
        fields |= {"vocab_size": len(processor), "pad_token_id": processor.pad_token_id}
    try:
        return AutoConfig.for_model(**fields)
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"{model} is no configuration: {str(error).splitlines()[0]}") from error


def make_word_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
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


def make_image_processor(data: Dataset) -> Any:
    """Pictures in the size of the data's first one, grey values from -1 to 1."""
    size, channels = _image_facts(data)["image_size"], _image_facts(data)["num_channels"]
    half = [0.5] * channels
    return ImageProcessor(size={"height": size, "width": size}, image_mean=half, image_std=half)


def _image_facts(data: Dataset) -> dict[str, int]:
    """An image's size, patch size (four patches a side) and channels, from the data's first image."""
    first = data[0]["image"]
    size = max(first.size)
    return {
        "image_size": size,
        "patch_size": max(1, size // 4),
        "num_channels": 1 if first.mode in {"L", "1", "I;16"} else 3,
    }


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExegeteError(f"{path} is no configuration: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ExegeteError(f"{path} is no configuration: expected a JSON object with 'model_type'")
    return content
