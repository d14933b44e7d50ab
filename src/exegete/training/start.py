"""The model a run starts from: pretrained or from scratch, with the head that the data needs."""

from __future__ import annotations

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
from exegete.models.load import HEADS
from exegete.training.scratch import SIZES, image_processor, sized, words_tokenizer

Source: TypeAlias = str | Path | PretrainedConfig | PreTrainedModel


def starting_model(
    model: Source, data: Dataset, processing_class: Any = None, *, max_length: int | None = None, seed: int = 0
) -> ExplainedModel:
    """The model before its first step.

    Args:
        model: a Hugging Face model, a folder or hub name of one, or a configuration to train from scratch (an object,
            a .json file, or one of `SIZES`).
        data: rows in canonical form; they decide the head and name its outputs.
        processing_class: tokenizer or image processor, or the path of one; default: what was saved with the model, and
            from scratch one made from the data.
        max_length: tokens that a text may have in training; the saved tokenizer does not keep it.
        seed: what the new weights depend on.

    Raises:
        ExegeteError: nothing there, no labels in the data, or a processor that does not fit.
    """
    require_labels(data)
    set_seed(seed)
    if isinstance(model, PreTrainedModel):
        _require_outputs(model, data)
        return ExplainedModel(model, _given(processing_class, data), max_length=max_length)
    if is_new(model):
        processor = _given(processing_class, data) or _made(data)
        config = sized(model, processor, data)
        _label(config, data)
        return ExplainedModel(_head(data).from_config(config), processor, max_length=max_length)
    return _pretrained(str(model), data, processing_class, max_length)


def is_new(model: Source) -> bool:
    """Whether a source means a model from scratch."""
    if isinstance(model, PreTrainedModel):
        return False
    return isinstance(model, PretrainedConfig) or str(model) in SIZES or str(model).endswith(".json")


def require_labels(data: Dataset) -> None:
    """Raises ExegeteError unless every row can be learned from."""
    if not len(data):
        raise ExegeteError("there are no rows to train on")
    if "answer" in data.column_names:
        return
    label = data.features.get("label")
    if label is None:
        raise ExegeteError(f"training needs a column 'label' or 'answer'; there are: {', '.join(data.column_names)}")
    if not isinstance(label, ClassLabel) and not str(label.dtype).startswith("float"):
        raise ExegeteError(f"the column 'label' is {label.dtype}: expected ClassLabel, or float for a regression")
    missing = next((i for i, value in enumerate(data["label"][:]) if value is None or value == -1), None)
    if missing is not None and isinstance(label, ClassLabel):
        raise ExegeteError(f"row {missing} has no label: leave such rows out of training")


def label_names(data: Dataset) -> list[str] | None:
    """The classes in their order; None for a regression and for spans."""
    label = data.features.get("label")
    return list(label.names) if isinstance(label, ClassLabel) else None


def _require_outputs(model: PreTrainedModel, data: Dataset) -> None:
    names = label_names(data)
    if names is not None and len(names) != model.config.num_labels:
        raise ExegeteError(f"the model has {model.config.num_labels} outputs, the data {len(names)} classes")
    _label(model.config, data)


def _pretrained(name: str, data: Dataset, processing_class: Any, max_length: int | None) -> ExplainedModel:
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise ExegeteError(f"there is no model at {name}")
    try:
        config = AutoConfig.from_pretrained(name)
        _label(config, data)
        model = _head(data).from_pretrained(name, config=config, ignore_mismatched_sizes=True)
        processor = _given(processing_class or name, data)
    except (OSError, ValueError) as error:
        raise ExegeteError(f"{name!r} cannot be fine-tuned: {str(error).strip().splitlines()[0]}") from error
    return ExplainedModel(model, processor, max_length=max_length)


def _head(data: Dataset) -> Any:
    if "answer" in data.column_names:
        return HEADS["ForQuestionAnswering"]
    return HEADS["ForImageClassification" if "image" in data.column_names else "ForSequenceClassification"]


def _label(config: PretrainedConfig, data: Dataset) -> None:
    """The head's outputs, named as the data names them."""
    names = label_names(data)
    if names is not None:
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
