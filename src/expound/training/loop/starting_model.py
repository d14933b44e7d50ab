"""The model that training starts from: pretrained or from scratch, with the head and processor that the data needs."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from datasets import ClassLabel, Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
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

from expound.data import generated_tokenizer
from expound.data.hub import cache_if_unreachable
from expound.errors import ExpoundError
from expound.models import ExplainedModel
from expound.models.encoding.labels import match_labels
from expound.models.layers.activations import restore_head_activation
from expound.models.layers.scalar_mix import restore_scalar_mix
from expound.models.loading.adapters import find_adapter_base, read_config
from expound.models.loading.checkpoint import check_config, describe_load_errors
from expound.models.loading.heads import HEADS
from expound.models.loading.load import load
from expound.training.loop.data import is_generation_data
from expound.training.loop.options import SIZES, names_new_model

logger = logging.getLogger(__name__)

Source: TypeAlias = str | Path | PretrainedConfig | PreTrainedModel

POSITIONS = 256
VOCABULARY = 8000
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def load_starting_model(
    model: Source, data: Dataset, processing_class: Any = None, *, max_length: int | None = None, seed: int = 0
) -> ExplainedModel:
    """Return the model before its first training step.

    Args:
        model: a Hugging Face model, also one with adapters, the folder or hub name of either, or a configuration to
            train from scratch (an object, a .json file, or a name of `SIZES`).
        data: examples in canonical form. They decide the head and name its outputs. A fine-tuned model whose outputs
            have these names keeps its order; the data must then be renumbered with `align_labels`.
        processing_class: tokenizer or image processor, or the path of one. Default: the one saved with the model; for
            a model from scratch, one made from the data.
        max_length: maximum number of tokens per text in training; it is not saved with the tokenizer.
        seed: seed of the new weights.

    Raises:
        ExpoundError: no model or no labels are found, or the processor does not fit.
    """
    require_labels(data)
    set_seed(seed)
    if is_generation_data(data):
        return _load_language_model(model, processing_class, max_length)
    if not isinstance(model, nn.Module) and not is_from_scratch(model) and find_adapter_base(str(model)):
        adapted = load(str(model), device="cpu")
        model, processing_class = adapted.model, processing_class or adapted.processing_class
    if isinstance(model, nn.Module):
        _require_outputs(model, data)
        return ExplainedModel(model, _load_processor(processing_class, data), max_length=max_length)
    if is_from_scratch(model):
        processor = _load_processor(processing_class, data) or _make_processor(data)
        config = make_config(model, processor, data)
        _set_labels(config, data)
        return ExplainedModel(_head_class(data).from_config(config), processor, max_length=max_length)
    return _load_pretrained(str(model), data, processing_class, max_length)


def is_from_scratch(model: Source) -> bool:
    """Return whether a source means a model that is trained from scratch."""
    return isinstance(model, PretrainedConfig) or (isinstance(model, str | Path) and names_new_model(str(model)))


# -- labels ----------------------------------------------------------------------------------------------------------


def require_labels(data: Dataset) -> None:
    """Raise ExpoundError unless every example has a label, an answer or a response to learn from."""
    if not len(data):
        raise ExpoundError("there are no rows to train on")
    if "span" in data.column_names:
        raise ExpoundError(
            "the rows have tagged words (column 'span'), and taggers are explained here but not trained: fine-tune an "
            "AutoModelForTokenClassification with transformers, or remove the column to classify whole texts"
        )
    if "answer" in data.column_names or is_generation_data(data):
        return
    label = data.features.get("label")
    if label is None:
        raise ExpoundError(f"training needs a column 'label' or 'answer'; there are: {', '.join(data.column_names)}")
    dtype = str(getattr(label, "dtype", label))
    is_classification = isinstance(label, ClassLabel)
    if not is_classification and not dtype.startswith("float"):
        raise ExpoundError(
            f"the column 'label' is {dtype}: expected one ClassLabel per row, or one float for a regression"
        )
    # datasets writes −1 for an unknown class.
    unknown = -1 if is_classification else None
    for row, value in enumerate(data["label"][:]):
        if value in (None, unknown) or math.isnan(value):
            raise ExpoundError(f"row {row} has no label: leave such rows out of training")


def label_names(data: Dataset) -> list[str] | None:
    """Return the names of the classes in their order, or None for a regression and for spans."""
    label = data.features.get("label")
    return list(label.names) if isinstance(label, ClassLabel) else None


def align_labels(model: ExplainedModel, data: Dataset) -> Dataset:
    """Return the data with labels renumbered to the order of the model's outputs, if both have the same names."""
    positions = _label_positions(label_names(data) or [], model.labels)
    if list(positions) == list(positions.values()):
        return data
    # A student's data has people's labels beside those of its teacher.
    columns = [name for name, feature in data.features.items() if feature == data.features["label"]]
    for column in columns:
        values = [positions.get(value, value) for value in data[column][:]]
        data = data.remove_columns(column).add_column(column, values, feature=ClassLabel(names=list(model.labels)))
    return data


def _label_positions(names: list[str], known: tuple[str, ...]) -> Mapping[int, int]:
    """Return the position of each name among the known ones if they match one to one, else the unchanged positions."""
    positions = match_labels(names, known)
    if len(names) == len(known) == len(set(positions.values())):
        return positions
    return {number: number for number in range(len(names))}


def _require_outputs(model: PreTrainedModel, data: Dataset) -> None:
    """Raise ExpoundError unless a given model has an output per class; then name its outputs."""
    names, outputs = label_names(data), model.config.num_labels
    if names is not None and len(names) != outputs:
        raise ExpoundError(f"the model has {outputs} outputs, the data {len(names)} classes")
    if names is None and "answer" not in data.column_names and outputs != 1:
        raise ExpoundError(f"the model has {outputs} outputs, a regression has one")
    _set_labels(model.config, data)


def _set_labels(config: PretrainedConfig, data: Dataset) -> None:
    """Name the head's outputs as the data does; outputs that have these names already keep their order."""
    names = label_names(data)
    if names is not None:
        known = tuple(str(name) for _, name in sorted(config.id2label.items()))
        positions = _label_positions(names, known)
        names = [names[number] for number in sorted(positions, key=positions.__getitem__)]
        config.id2label = dict(enumerate(names))
        config.label2id = {name: index for index, name in enumerate(names)}
        # Without a problem type transformers guesses it from the dtype of the first batch of labels.
        config.problem_type = "single_label_classification"
    elif "answer" not in data.column_names:
        config.num_labels, config.problem_type = 1, "regression"


# -- pretrained models -----------------------------------------------------------------------------------------------


def _load_language_model(model: Source, processing_class: Any, max_length: int | None) -> ExplainedModel:
    """Load a causal language model onto the CPU, where all models are before their first step."""
    if is_from_scratch(model):
        raise ExpoundError("a language model is not trained from scratch here: give its folder as the model")
    source: Any = model
    device = None
    if isinstance(model, str | Path):
        source, device = str(model), "cpu"
    if isinstance(processing_class, str | Path):
        processing_class = AutoTokenizer.from_pretrained(str(processing_class))
    loaded = load(source, processing_class, device, task="generation", max_length=max_length)
    if loaded.config.is_encoder_decoder:
        raise ExpoundError("an encoder with a decoder is explained, not trained: give a decoder alone")
    return loaded


@cache_if_unreachable
def _load_pretrained(name: str, data: Dataset, processing_class: Any, max_length: int | None) -> ExplainedModel:
    # transformers would take a missing path for the name of a hub repository.
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise ExpoundError(f"there is no model at {name}")
    with describe_load_errors(name, "model to fine-tune"):
        config = read_config(name)
        check_config(name, config)
        own_count = config.num_labels
        _set_labels(config, data)
        # A head for another number of classes is replaced by a new one.
        options = {"config": config, "ignore_mismatched_sizes": True, "use_safetensors": True}
        loader = restore_scalar_mix(_head_class(data), config)
        model, info = loader.from_pretrained(name, output_loading_info=True, **options)
        restore_head_activation(model)
        # A body without a head has no weights of other sizes.
        if info.get("mismatched_keys") and own_count != config.num_labels:
            # A regression has one output and no classes.
            outputs = "classes" if min(own_count, config.num_labels) > 1 else "outputs"
            logger.warning(
                "%s: the head is new, because the model has %d %s and the data %d",
                name, own_count, outputs, config.num_labels,
            )  # fmt: skip
        processor = _load_processor(processing_class or name, data)
    return ExplainedModel(model, processor, max_length=max_length)


def _head_class(data: Dataset) -> Any:
    """Return the auto class of the data's task."""
    if "answer" in data.column_names:
        return HEADS["ForQuestionAnswering"]
    if "image" in data.column_names:
        return HEADS["ForImageClassification"]
    return HEADS["ForSequenceClassification"]


def _load_processor(processing_class: Any, data: Dataset) -> Any:
    if not isinstance(processing_class, str | Path):
        return processing_class
    loader = AutoImageProcessor if "image" in data.column_names else AutoTokenizer
    try:
        return loader.from_pretrained(str(processing_class))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ExpoundError(f"no processor could be loaded from {str(processing_class)!r}: {first}") from error


# -- from scratch ----------------------------------------------------------------------------------------------------


def make_config(model: str | Path | PretrainedConfig, processor: Any, data: Dataset) -> PretrainedConfig:
    """Return a configuration with the vocabulary size or picture size of the data.

    Args:
        model: a configuration, a .json file with `model_type`, or a name of `SIZES` (BERT for texts, ViT for images).
        processor: the tokenizer, whose vocabulary counts; not used for images.
        data: examples in canonical form.

    Raises:
        ExpoundError: the file is not a configuration.
    """
    if isinstance(model, PretrainedConfig):
        return model
    has_images = "image" in data.column_names
    if str(model) in SIZES:
        fields: dict[str, Any] = dict(SIZES[str(model)])
        if has_images:
            fields |= {"model_type": "vit", **_image_facts(data)}
        else:
            fields |= {"model_type": "bert", "max_position_embeddings": POSITIONS}
    else:
        fields = dict(_read_config(Path(model)))
    if not has_images:
        fields |= {"vocab_size": len(processor), "pad_token_id": processor.pad_token_id}
    try:
        return AutoConfig.for_model(**fields)
    except (TypeError, ValueError) as error:
        raise ExpoundError(f"{model} is no configuration: {str(error).splitlines()[0]}") from error


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExpoundError(f"{path} is no configuration: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ExpoundError(f"{path} is no configuration: expected a JSON object with 'model_type'")
    return content


def _make_processor(data: Dataset) -> Any:
    """Make a tokenizer, or a processor that scales pictures to the first one's size and values to [-1, 1]."""
    if "image" in data.column_names:
        facts = _image_facts(data)
        size, half = facts["image_size"], [0.5] * facts["num_channels"]
        return ImageProcessor(size={"height": size, "width": size}, image_mean=half, image_std=half)
    # The generated corpus has a fixed vocabulary, so that models of different samples share it.
    if data.info.description.partition("?")[0] == "generated":
        return generated_tokenizer()
    columns = [name for name in ("text", "text_pair") if name in data.column_names]
    return make_word_tokenizer(chain.from_iterable(data[name] for name in columns))


def make_word_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Return a lower-casing WordPiece tokenizer with the most frequent words as tokens; it spells all other words."""
    # A trained WordPiece would depend on hash order; counting and sorting gives the same vocabulary in every process.
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update([word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))])
    letters = sorted(set("".join(counts)))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    pieces = dict.fromkeys([*SPECIAL_TOKENS.values(), *letters, *[f"##{letter}" for letter in letters], *words])
    ids = {piece: index for index, piece in enumerate(list(pieces)[:vocabulary])}
    raw = Tokenizer(models.WordPiece(ids, unk_token=SPECIAL_TOKENS["unk_token"]))
    raw.normalizer, raw.pre_tokenizer = normalizer, splitter
    raw.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_input_names=inputs, model_max_length=POSITIONS, **SPECIAL_TOKENS
    )


def _image_facts(data: Dataset) -> dict[str, int]:
    """Return image size, patch size (four patches per side) and channels of the data's first image."""
    first = data[0]["image"]
    size = max(first.size)
    return {
        "image_size": size,
        "patch_size": max(1, size // 4),
        # Pillow's modes of one channel: 8-bit grey, 1-bit, 16-bit grey.
        "num_channels": 1 if first.mode in {"L", "1", "I;16"} else 3,
    }
