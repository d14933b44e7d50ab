"""From a name, a folder or a model to an ExplainedModel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Pipeline,
    PreTrainedModel,
)

from exegete.data.hub import find_folder
from exegete.data.local import looks_local, require_local_model
from exegete.errors import ExegeteError, unknown
from exegete.models.bi_encoder import BiEncoder, read_pooling
from exegete.models.choices import ChoosingModel
from exegete.models.explained import ExplainedModel
from exegete.models.generation.encoder_decoder import EncoderDecoderModel
from exegete.models.generation.model import GeneratingModel
from exegete.models.layers.head_activation import restore_head_activation
from exegete.models.loading.adapters import find_adapter_base, load_adapter, unwrap_adapter
from exegete.models.loading.checkpoint import (
    check_config,
    check_files,
    check_finite,
    check_weights,
    describe_load_errors,
)
from exegete.models.loading.quantized import BITS, keep_weight_order, quantization_options
from exegete.models.loading.vocabulary import check_vocabulary
from exegete.models.prompted import PromptedModel
from exegete.models.tasks import TASKS
from exegete.models.token_heads import MaskedModel, TaggingModel

CAUSAL = ("prompt", "generation")
SIMILARITY = "similarity"
HEADS: dict[str, Any] = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "ForImageClassification": AutoModelForImageClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForMaskedLM": AutoModelForMaskedLM,
    "ForMultipleChoice": AutoModelForMultipleChoice,
}
OWN: dict[str, type[TaggingModel] | type[MaskedModel] | type[ChoosingModel]] = {
    "ForTokenClassification": TaggingModel,
    "ForMaskedLM": MaskedModel,
    "ForMultipleChoice": ChoosingModel,
}
"""Heads with a class of models of their own."""
INSTEAD = {
    "ForConditionalGeneration": "an encoder-decoder is explained in what it says: task='generation'",
    "ForCTC": "audio is not explained: transcribe it, and explain the text",
    "ForAudioClassification": "audio is not explained: transcribe it, and explain the text",
    "ForPreTraining": "save its masked head alone, as AutoModelForMaskedLM does",
    "ForNextSentencePrediction": "fine-tune a classifier of pairs: exegete train baseline",
}
"""Advice in the place of heads that are not explained."""

PROCESSOR_FILES = {
    True: ("preprocessor_config.json",),
    False: ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model"),
}


def load(
    model: str | Path | PreTrainedModel | Pipeline | tuple[PreTrainedModel, Any] | ExplainedModel,
    processing_class: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    task: str | None = None,
    template: str | None = None,
    labels: Sequence[str] | Mapping[str, str] | None = None,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    incomplete: bool = False,
    device_map: str | dict[str, Any] | None = None,
    tokenizer: Any = None,
    image_processor: Any = None,
) -> ExplainedModel:
    """Loads a model to be explained, or wraps one that is already loaded.

    Args:
        model: a folder, a hub name, or a Hugging Face model, alone, in a pipeline or with its tokenizer as a pair; it
            stays where it is and as it is. A folder or name of a LoRA adapter loads the model that it was trained on,
            and puts the adapter into it.
        processing_class: its tokenizer or image processor; default: the one saved beside the model.
        device: where to put a model loaded by name; default: the GPU if there is one; "auto": see `device_map`.
        dtype: the floating point type to load it in, as "bfloat16"; "8bit", "4bit": linear layers' weights in so many
            bits, by bitsandbytes; default: the checkpoint's own.
        task: what the model's answer is, where its configuration does not say; `prompt`: a causal language model
            classifies by continuing `template`, in which `{text}` stands for the text, with one of `labels`; see
            `PromptedModel`; `generation`: a causal language model, or an encoder with a decoder, is explained in what
            it says, see `GeneratingModel` and `EncoderDecoderModel`; `similarity`: an encoder is explained in how
            similar it finds two texts, see `BiEncoder` (folders of sentence-transformers need not be told).
        template: the prompt.
        labels: how each label continues the prompt, as a list or by name.
        max_length: tokens that a text may have, where that shall be fewer than the model takes.
        trust_remote_code: run modelling code that comes with the checkpoint.
        incomplete: explain a checkpoint of which weights are missing, or that has some which the model does not use.
        device_map: where the parts of a model loaded by name go, see Accelerate: "auto" fills the GPUs, then the
            memory, then the disk; instead of `device`.
        tokenizer: another name of `processing_class`.
        image_processor: another name of `processing_class`.

    Raises:
        ExegeteError: nothing there, or damaged; a device or type that there is not; no head that can be explained;
            weights that are missing, left over, pickled, not finite, or of other sizes than the configuration says.
    """
    if isinstance(model, ExplainedModel):
        return model
    _check_task(task, template, labels)
    model, beside = _taken_apart(model)
    processing_class = _only(processing_class, tokenizer, image_processor) or beside
    names: tuple[str, ...]
    pooling = None
    if not isinstance(model, str | Path):
        if device is not None or dtype is not None or device_map is not None:
            raise ExegeteError(
                "a model that is already loaded stays where it is: move it yourself, without device=, dtype= and "
                "device_map="
            )
        loaded, names = model, (str(model.config._name_or_path),)
        check_finite(names[0], model)
    else:
        name = os.path.expanduser(model)
        if isinstance(model, Path) and not Path(name).exists():
            raise ExegeteError(f"there is no model at {name}")
        _check_dtype(dtype)
        place, parts = _placed(device, device_map)
        if quantized := quantization_options(dtype):
            dtype, place, parts = None, None, ({"device_map": {"": place}} if place else parts) | quantized
        pooling = read_pooling(find_folder(name) if task == SIMILARITY else Path(name))
        task = task if pooling is None else SIMILARITY
        base = find_adapter_base(name)
        names = (name,) if base is None else (name, base)
        options = {"trust_remote_code": trust_remote_code} | parts
        loaded = _pretrained(names[-1], dtype, options, task, adapter=names[:-1], incomplete=incomplete)
        keep_weight_order(loaded)
        (loaded if place is None else loaded.to(place)).eval()
    for name in names:
        processing_class = processing_class or load_processor(name, loaded, trust_remote_code)
    rows = getattr(loaded.get_input_embeddings(), "num_embeddings", None)
    if rows is not None:
        with describe_load_errors(names[0], "tokenizer"):
            check_vocabulary(names[0], processing_class, rows)
    if template is not None and labels is not None:
        return PromptedModel(loaded, processing_class, template, labels, max_length)
    if task == SIMILARITY:
        return BiEncoder(loaded, processing_class, pooling or "mean", max_length)
    return _with_its_task(loaded, processing_class, task, max_length)


def _with_its_task(
    loaded: PreTrainedModel, processing_class: Any, task: str | None, max_length: int | None
) -> ExplainedModel:
    """The model as its head or the task says."""
    if task == "generation":
        kind = EncoderDecoderModel if loaded.config.is_encoder_decoder else GeneratingModel
        return kind(loaded, processing_class, max_length)
    own = next((own for head, own in OWN.items() if type(unwrap_adapter(loaded)).__name__.endswith(head)), None)
    if own is not None and task is None:
        return own(loaded, processing_class, max_length)
    return ExplainedModel(loaded, processing_class, task, max_length)


def _taken_apart(model: Any) -> tuple[str | Path | PreTrainedModel, Any]:
    """The model of a pipeline or a pair and its tokenizer or image processor; what else it is, with None."""
    beside = None
    if isinstance(model, Pipeline):
        model, beside = model.model, model.tokenizer or model.image_processor
    elif isinstance(model, tuple) and len(model) == 2:
        model, beside = model
    if not isinstance(model, str | Path) and not hasattr(model, "config"):
        raise ExegeteError(
            "expected a folder, a hub name, a Hugging Face model, a pipeline or (model, tokenizer), "
            f"got {type(model).__name__}"
        )
    return model, beside


def _only(*given: Any) -> Any:
    """The one of several names for the same thing that was used; None where none was."""
    used = [each for each in given if each is not None]
    if len(used) > 1:
        raise ExegeteError("processing_class=, tokenizer= and image_processor= are one thing: give it once")
    return used[0] if used else None


def _check_task(task: str | None, template: str | None, labels: Sequence[str] | Mapping[str, str] | None) -> None:
    choices = {*TASKS, *CAUSAL, SIMILARITY}
    if task is not None and task not in choices:
        raise unknown("task", task, choices)
    if (task == "prompt") != (template is not None) or (task == "prompt") != (labels is not None):
        raise ExegeteError("task='prompt', template= and labels= go together: give all three or none")


def _device(device: str | torch.device | None) -> torch.device:
    try:
        return torch.empty(0, device=device or ("cuda" if torch.cuda.is_available() else "cpu")).device
    except (RuntimeError, AssertionError) as error:
        reason = _first_line(error)
        raise ExegeteError(f"expected a device that is here, as cpu, cuda or cuda:1, got {device}: {reason}") from error


def _placed(device: str | torch.device | None, device_map: Any) -> tuple[torch.device | None, dict[str, Any]]:
    """The device of the whole model and no options; or None, and those that say it part by part."""
    if device is not None and device_map is not None:
        raise ExegeteError("device= and device_map= both say where the model goes: give one")
    if device == "auto" or device_map is not None:
        return None, {"device_map": device_map or device}
    return _device(device), {}


def _check_dtype(dtype: str | torch.dtype | None) -> None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype not in (None, "auto", *BITS) and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise unknown("floating point type", str(dtype), ("float64", "float32", "bfloat16", "float16", *BITS))


def _pretrained(
    name: str,
    dtype: str | torch.dtype | None,
    given: dict[str, Any],
    task: str | None,
    *,
    adapter: tuple[str, ...],
    incomplete: bool,
) -> PreTrainedModel:
    """The model, loaded with these options, with the adapter in it if there is one."""
    require_local_model(name)
    check_files(name)
    with describe_load_errors(name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=given["trust_remote_code"])
        check_config(name, config)
    architecture = (config.architectures or [config.model_type])[0]
    if config.is_encoder_decoder and (task != "generation" or architecture.endswith(tuple(HEADS))):
        raise ExegeteError(
            f"{name} holds {architecture:.80}, an encoder with a decoder: those are explained in what they say "
            "(task='generation'), by a language modelling head"
        )
    with describe_load_errors(name, "weights"):
        bare = {SIMILARITY: AutoModel} | dict.fromkeys(CAUSAL, AutoModelForCausalLM)
        if config.is_encoder_decoder:
            bare["generation"] = AutoModelForSeq2SeqLM
        head = bare[task] if task in bare else _head(name, config, anything=bool(adapter))
        options = given | {"use_safetensors": True, "ignore_mismatched_sizes": True}
        model, info = head.from_pretrained(name, dtype=dtype or "auto", output_loading_info=True, **options)
    base = model
    for folder in adapter:
        model, brought = load_adapter(model, folder)
        info["missing_keys"] = [key for key in info["missing_keys"] if not set(brought) & set(key.split("."))]
    check_weights(name, base, info, incomplete=incomplete)
    restore_head_activation(base)
    return model


def _head(name: str, config: Any, *, anything: bool) -> Any:
    """The class that loads the checkpoint with its head; an adapter of a bare model brings a classifier's own."""
    architecture = (config.architectures or ["none"])[0]
    head = next((head for suffix, head in HEADS.items() if architecture.endswith(suffix)), None)
    if head is None and anything:
        return AutoModelForSequenceClassification
    instead = next((hint for suffix, hint in INSTEAD.items() if architecture.endswith(suffix)), None)
    if head is None and instead is not None:
        raise ExegeteError(f"{name} holds {architecture:.80}, whose head is not explained: {instead}")
    if head is None:
        raise ExegeteError(
            f"{name} holds {architecture:.80}, which has no classification head; expected "
            + ", ".join(f"…{suffix}" for suffix in HEADS)
            + ". Fine-tune it first: exegete train baseline; or take a causal language model as it is, as a classifier "
            "(task='prompt') or for what it says (task='generation')"
        )
    return head


def load_processor(name: str, model: PreTrainedModel, trust_remote_code: bool) -> Any:
    """The tokenizer or image processor saved with the model; None where nothing was saved."""
    if not name or (looks_local(name) and not Path(name).exists()):
        return None
    images = model.main_input_name == "pixel_values"
    if Path(name).is_dir() and not any((Path(name) / file).exists() for file in PROCESSOR_FILES[images]):
        return None
    loader = AutoImageProcessor if images else AutoTokenizer
    check_files(name)
    with describe_load_errors(name, "image processor" if images else "tokenizer"):
        return loader.from_pretrained(name, trust_remote_code=trust_remote_code)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
