"""The model a run starts from: pretrained or from scratch, with the head that the data needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from datasets import ClassLabel, Dataset
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    set_seed,
)

from exegete.data import generated_tokenizer
from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.models.encoding.labels import match_labels
from exegete.models.layers.head_activation import restore_head_activation
from exegete.models.loading.checkpoint import check_config, check_files, describe_load_errors
from exegete.models.loading.load import HEADS, load
from exegete.training.loop.exchanges import are_exchanges
from exegete.training.loop.from_scratch import image_processor, sized, words_tokenizer
from exegete.training.loop.sizes import from_scratch

Source: TypeAlias = str | Path | PretrainedConfig | PreTrainedModel


def starting_model(
    model: Source, data: Dataset, processing_class: Any = None, *, max_length: int | None = None, seed: int = 0
) -> ExplainedModel:
    """The model before its first step.

    Args:
        model: a Hugging Face model, a folder or hub name of one, or a configuration to train from scratch (an object,
            a .json file, or one of `SIZES`).
        data: rows in canonical form; they decide the head and name its outputs. Where a fine-tuned model's outputs have
            these names already, they keep their order, and data has to be renumbered, see `as_numbered`.
        processing_class: tokenizer or image processor, or the path of one; default: what was saved with the model, and
            from scratch one made from the data.
        max_length: tokens that a text may have in training; the saved tokenizer does not keep it.
        seed: what the new weights depend on.

    Raises:
        ExegeteError: nothing there, no labels in the data, or a processor that does not fit.
    """
    require_labels(data)
    set_seed(seed)
    if are_exchanges(data):
        return _speaking(model, processing_class, max_length)
    if isinstance(model, PreTrainedModel):
        _require_outputs(model, data)
        return ExplainedModel(model, _given(processing_class, data), max_length=max_length)
    if is_new(model):
        processor = _given(processing_class, data) or _made(data)
        config = sized(model, processor, data)
        _label(config, data)
        return ExplainedModel(_head(data).from_config(config), processor, max_length=max_length)
    return _pretrained(str(model), data, processing_class, max_length)


def _speaking(model: Source, processing_class: Any, max_length: int | None) -> ExplainedModel:
    """A causal language model, on the CPU as all models before their first step."""
    if is_new(model):
        raise ExegeteError("a language model is not trained from scratch here: give its folder as the model")
    source: Any = model if isinstance(model, PreTrainedModel) else str(model)
    where = None if isinstance(model, PreTrainedModel) else "cpu"
    made = load(source, _tokenizer(processing_class), where, task="generation", max_length=max_length)
    if made.config.is_encoder_decoder:
        raise ExegeteError("an encoder with a decoder is explained, not trained: give a decoder alone")
    return made


def _tokenizer(given: Any) -> Any:
    return AutoTokenizer.from_pretrained(str(given)) if isinstance(given, str | Path) else given


def is_new(model: Source) -> bool:
    """Whether a source means a model from scratch."""
    if isinstance(model, PreTrainedModel):
        return False
    return isinstance(model, PretrainedConfig) or from_scratch(str(model))


def require_labels(data: Dataset) -> None:
    """Raises ExegeteError unless every row can be learned from."""
    if not len(data):
        raise ExegeteError("there are no rows to train on")
    if "answer" in data.column_names or are_exchanges(data):
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


def as_numbered(model: ExplainedModel, data: Dataset) -> Dataset:
    """The data, its classes in the order of the model's outputs where those are named alike; else as it is."""
    places = _places(label_names(data) or [], model.labels)
    if all(number == place for number, place in places.items()):
        return data
    for column in [name for name, feature in data.features.items() if feature == data.features["label"]]:
        values = [places.get(value, value) for value in data[column][:]]
        data = data.remove_columns(column).add_column(column, values, feature=ClassLabel(names=list(model.labels)))
    return data


def _places(names: list[str], known: tuple[str, ...]) -> Mapping[int, int]:
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
    _label(model.config, data)


def _pretrained(name: str, data: Dataset, processing_class: Any, max_length: int | None) -> ExplainedModel:
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise ExegeteError(f"there is no model at {name}")
    check_files(name)
    with describe_load_errors(name, "model to fine-tune"):
        config = AutoConfig.from_pretrained(name)
        check_config(name, config)
        _label(config, data)
        options = {"config": config, "ignore_mismatched_sizes": True, "use_safetensors": True}
        model = restore_head_activation(_head(data).from_pretrained(name, **options))
        processor = _given(processing_class or name, data)
    return ExplainedModel(model, processor, max_length=max_length)


def _head(data: Dataset) -> Any:
    if "answer" in data.column_names:
        return HEADS["ForQuestionAnswering"]
    return HEADS["ForImageClassification" if "image" in data.column_names else "ForSequenceClassification"]


def _label(config: PretrainedConfig, data: Dataset) -> None:
    """The head's outputs, named as the data names them; where they were named so already, they keep their order."""
    names = label_names(data)
    if names is not None:
        places = _places(names, tuple(str(name) for _, name in sorted(config.id2label.items())))
        names = [names[number] for number in sorted(places, key=places.__getitem__)]
        config.id2label, config.label2id = dict(enumerate(names)), {name: index for index, name in enumerate(names)}
        config.problem_type = "single_label_classification"
    elif "answer" not in data.column_names:
        config.num_labels, config.problem_type = 1, "regression"


def _given(processing_class: Any, data: Dataset) -> Any:
    if not isinstance(processing_class, str | Path):
        return processing_class
    loader = AutoImageProcessor if "image" in data.column_names else AutoTokenizer
    try:
        return loader.from_pretrained(str(processing_class))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ExegeteError(f"no processor could be loaded from {str(processing_class)!r}: {first}") from error


def _made(data: Dataset) -> Any:
    if "image" in data.column_names:
        return image_processor(data)
    if data.info.description.partition("?")[0] == "generated":
        return generated_tokenizer()
    return words_tokenizer(text for name in ("text", "text_pair") if name in data.column_names for text in data[name])
