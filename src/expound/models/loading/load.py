"""Loading of an ExplainedModel from a name, a folder or a Hugging Face model."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    Pipeline,
    PreTrainedModel,
)

from expound.data.hub import cache_if_unreachable, find_folder, looks_local, require_local_model
from expound.errors import ExpoundError, shorten, unknown
from expound.models.bi_encoder import BiEncoder, Pooling, read_pooling
from expound.models.choices import ChoosingModel
from expound.models.explained import ExplainedModel
from expound.models.function import TextFunction, is_function, load_function
from expound.models.generation.encoder_decoder import EncoderDecoderModel
from expound.models.generation.model import GeneratingModel
from expound.models.generation.vision_language import VisionLanguageModel
from expound.models.layers.activations import restore_head_activation
from expound.models.layers.architecture import get_embedding, has_head
from expound.models.layers.scalar_mix import restore_scalar_mix
from expound.models.loading.adapters import find_adapter_base, has_own_config, load_adapter, read_config
from expound.models.loading.checkpoint import (
    check_config,
    check_files,
    check_finite,
    check_vocabulary,
    check_weights,
    describe_load_errors,
)
from expound.models.loading.gguf import find_gguf, load_gguf
from expound.models.loading.heads import CAUSAL, SIMILARITY, choose_loader, choose_pipeline_task
from expound.models.loading.quantized import BITS, keep_weight_order, quantization_options
from expound.models.loading.remote import is_address, load_remote
from expound.models.prompted import PromptedModel
from expound.models.tasks import TASKS
from expound.models.token_heads import MaskedModel, TaggingModel

logger = logging.getLogger(__name__)
ModelSource: TypeAlias = (
    str | Path | PreTrainedModel | Pipeline | tuple[PreTrainedModel, Any] | ExplainedModel | TextFunction
)
"""What `load` takes as a model."""

OWN: dict[str, type[TaggingModel] | type[MaskedModel] | type[ChoosingModel]] = {
    "ForTokenClassification": TaggingModel,
    "ForMaskedLM": MaskedModel,
    "ForMultipleChoice": ChoosingModel,
}
"""Heads whose models have a class of their own."""
PROCESSOR_FILES = {
    True: ("preprocessor_config.json",),
    False: ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model"),
}
"""An image processor (True), or a tokenizer (False), has at least one of these files."""
OF_IMAGES_AND_TEXT = ("processor_config.json", "preprocessor_config.json")
"""A processor of images and text has at least one of these files."""


@cache_if_unreachable
def load(
    model: ModelSource,
    processing_class: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    task: str | None = None,
    template: str | None = None,
    labels: Sequence[str] | Mapping[str, str] | None = None,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    allow_incomplete_weights: bool = False,
    device_map: str | dict[str, Any] | None = None,
    tokenizer: Any = None,
    image_processor: Any = None,
    check: bool = True,
) -> ExplainedModel:
    """Load a model to be explained, or wrap one that is already loaded.

    Args:
        model: a folder, a hub name, a GGUF file of a language model, or a Hugging Face model, alone, in a pipeline or
            with its tokenizer as a pair; a loaded model is not moved or changed. A folder or name of a LoRA adapter
            loads the model that it was trained on, with the adapter in it. For `generation` also the address of a
            server, "http://127.0.0.1:8000/v1?model=NAME&tokenizer=FOLDER&concurrency=8", see `CompletionsModel`.
            Also a function from a list of texts to their class probabilities, such as `predict_proba`, with `labels`;
            see `FunctionModel`.
        processing_class: its tokenizer or image processor; default: the one saved beside the model.
        device: where to put a model loaded by name; default: the GPU if there is one; "auto": see `device_map`.
        dtype: the floating point type to load it in, such as "bfloat16"; "8bit" and "4bit" store the weights of linear
            layers in 8 or 4 bits, by bitsandbytes; default: the checkpoint's own.
        task: what the model predicts, if its configuration does not say it. `prompt`: a causal language model
            classifies by continuing `template`, which has `{text}` in the place of the text, with one of `labels`; see
            `PromptedModel`. `generation`: a causal language model or an encoder-decoder is explained in its responses;
            see `GeneratingModel` and `EncoderDecoderModel`. `similarity`: an encoder is explained in its similarity of
            two texts; see `BiEncoder` (the default for folders of sentence-transformers).
        template: the prompt.
        labels: how each label continues the prompt, as a list or by name; of a function, the names of its classes.
        max_length: the most tokens of a text, if fewer than the model allows.
        trust_remote_code: run modeling code that comes with the checkpoint.
        allow_incomplete_weights: explain a checkpoint although weights are missing, or left over.
        device_map: where the parts of a model loaded by name go, see Accelerate: "auto" fills the GPUs, then the
            memory, then the disk; instead of `device`.
        tokenizer: another name of `processing_class`.
        image_processor: another name of `processing_class`.
        check: check, when a method is first used, that what it assumes holds for the model, see `expound.check_model`.

    Raises:
        ExpoundError: a model that does not exist, or is damaged; an unknown device or type; no head that can be
            explained; weights that are missing, left over, pickled, not finite, or of other sizes than the
            configuration says.
    """
    if isinstance(model, ExplainedModel):
        return model if check else model.without_checks()
    if is_function(model):
        others = (processing_class, tokenizer, image_processor, device, dtype, device_map, task, template, max_length)
        return load_function(model, labels, others)
    _check_task(task, template, labels)
    if is_address(model):
        _require_no_place(device, dtype, device_map)
        return load_remote(model, _choose_one(processing_class, tokenizer, image_processor), task, max_length)
    task = choose_pipeline_task(model, task)
    model, own_processor = _split_pair(model)
    processing_class = _choose_one(processing_class, tokenizer, image_processor) or own_processor
    names: tuple[str, ...]
    pooling = None
    if isinstance(model, str | Path):
        if isinstance(model, Path) and not Path(os.path.expanduser(model)).exists():
            raise ExpoundError(f"there is no model at {os.path.expanduser(model)}")
        name = os.path.expanduser(model)
        _check_dtype(dtype)
        place, options = _choose_device(device, device_map)
        pooling = read_pooling(find_folder(name) if task == SIMILARITY else Path(name))
        if pooling is not None:
            task = SIMILARITY
        base = find_adapter_base(name)
        names = (name,) if base is None else (name, base)
        gguf = find_gguf(name)
        if gguf is not None:
            loaded, saved_tokenizer = _load_gguf_for_task(gguf, dtype, place, task)
            processing_class = processing_class or saved_tokenizer
        else:
            loaded = _load_by_name(names, dtype, place, options, task, trust_remote_code, allow_incomplete_weights)
    else:
        _require_no_place(device, dtype, device_map)
        loaded, names = model, (str(model.config._name_or_path),)
        check_finite(names[0], model)
    # An adapter's folder often has a tokenizer of its own, which goes first.
    for name in names:
        processing_class = processing_class or load_processor(name, loaded, trust_remote_code)
    with describe_load_errors(names[0], "tokenizer"):
        check_vocabulary(names[0], processing_class, getattr(get_embedding(loaded), "num_embeddings", None))
    explained: ExplainedModel
    if template is not None and labels is not None:
        explained = PromptedModel(loaded, processing_class, template, labels, max_length)
    else:
        explained = _wrap_by_task(loaded, processing_class, task, max_length, pooling or "mean")
    return explained if check else explained.without_checks()


def _require_no_place(device: Any, dtype: Any, device_map: Any) -> None:
    if device is not None or dtype is not None or device_map is not None:
        raise ExpoundError(
            "a model that is already loaded, or behind a server, stays where it is: leave out device=, dtype= and "
            "device_map="
        )


def _load_by_name(
    names: tuple[str, ...],
    dtype: str | torch.dtype | None,
    device: torch.device | None,
    options: dict[str, Any],
    task: str | None,
    trust_remote_code: bool,
    allow_incomplete_weights: bool,
) -> PreTrainedModel:
    """Return the model with the last name, with the adapter of the first name if there are two."""
    quantization = quantization_options(dtype)
    if quantization:
        # bitsandbytes quantizes while it loads, on the device where the weights stay.
        if device:
            options = {"device_map": {"": device}}
        options = options | quantization
        dtype, device = None, None
    options = options | {"trust_remote_code": trust_remote_code}
    loaded = _load_pretrained(
        names[-1], dtype, options, task, adapter=names[:-1], allow_incomplete_weights=allow_incomplete_weights
    )
    keep_weight_order(loaded)
    if device is not None:
        loaded.to(device)
    loaded.eval()
    return loaded


def _load_gguf_for_task(
    file: Path, dtype: str | torch.dtype | None, device: torch.device | None, task: str | None
) -> tuple[PreTrainedModel, Any]:
    """Return the causal language model of a GGUF file, and its tokenizer."""
    if task not in CAUSAL:
        raise ExpoundError(
            f"{file} holds a language model: explain what it says with task='generation', or task='prompt'"
        )
    if dtype in BITS or device is None:
        raise ExpoundError(f"{file} is dequantized when it is loaded: give a floating point type and one device")
    # The file's own types are quantized, so there is no type to keep.
    torch_type = torch.float32 if dtype in (None, "auto") else dtype
    torch_type = getattr(torch, torch_type) if isinstance(torch_type, str) else torch_type
    loaded, tokenizer = load_gguf(file, torch_type)
    check_finite(str(file), loaded)
    return loaded.to(device), tokenizer


def _wrap_by_task(
    loaded: PreTrainedModel, processing_class: Any, task: str | None, max_length: int | None, pooling: Pooling
) -> ExplainedModel:
    """Return the model in the class of its task or of its head."""
    if task == SIMILARITY:
        return BiEncoder(loaded, processing_class, pooling, max_length)
    if task == "generation":
        if hasattr(processing_class, "image_processor"):
            return VisionLanguageModel(loaded, processing_class, max_length)
        wrapper = EncoderDecoderModel if loaded.config.is_encoder_decoder else GeneratingModel
        return wrapper(loaded, processing_class, max_length)
    for head, own_wrapper in OWN.items():
        if task is None and has_head(loaded, head):
            return own_wrapper(loaded, processing_class, max_length)
    return ExplainedModel(loaded, processing_class, task, max_length)


def _split_pair(model: Any) -> tuple[str | Path | PreTrainedModel, Any]:
    """Return a model, and the tokenizer or image processor that a pipeline or a pair holds beside it."""
    processor = None
    if isinstance(model, Pipeline):
        model, processor = model.model, model.tokenizer or model.image_processor
    elif isinstance(model, tuple) and len(model) == 2:
        model, processor = model
    if hasattr(model, "_orig_mod"):
        raise ExpoundError("a compiled model hides what explanations look at: give the model, without torch.compile")
    # A wrapper may forward `config` to the model inside, or have one of its own, as DeepSpeed's engine.
    if not isinstance(model, PreTrainedModel) and isinstance(getattr(model, "module", None), torch.nn.Module):
        raise ExpoundError(f"{type(model).__name__} wraps the model: give the model inside, model.module")
    if not isinstance(model, str | Path) and not hasattr(model, "config"):
        raise ExpoundError(
            "expected a folder, a hub name, a Hugging Face model, a pipeline, (model, tokenizer), or a function from "
            "texts to probabilities, such as the method predict_proba of a scikit-learn pipeline, "
            f"got {type(model).__name__}"
        )
    return model, processor


def _choose_one(*processors: Any) -> Any:
    used = [processor for processor in processors if processor is not None]
    if len(used) > 1:
        raise ExpoundError("processing_class=, tokenizer= and image_processor= are one thing: give it once")
    return used[0] if used else None


def _check_task(task: str | None, template: str | None, labels: Sequence[str] | Mapping[str, str] | None) -> None:
    choices = {*TASKS, *CAUSAL, SIMILARITY}
    if task is not None and task not in choices:
        raise unknown("task", task, choices)
    if len({task == "prompt", template is not None, labels is not None}) > 1:
        raise ExpoundError("task='prompt', template= and labels= go together: give all three or none")


def _choose_device(device: str | torch.device | None, device_map: Any) -> tuple[torch.device | None, dict[str, Any]]:
    """Return the device of the whole model, or None and the options that distribute its parts."""
    if device is not None and device_map is not None:
        raise ExpoundError("device= and device_map= both say where the model goes: give one")
    if device == "auto" or device_map is not None:
        return None, {"device_map": device_map or device}
    # Only a tensor shows whether a device exists; torch.device("cuda:7") never fails.
    try:
        return torch.empty(0, device=device or ("cuda" if torch.cuda.is_available() else "cpu")).device, {}
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExpoundError(f"expected a device that is here, as cpu, cuda or cuda:1, got {device}: {reason}") from error


def _check_dtype(dtype: str | torch.dtype | None) -> None:
    torch_type = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    is_floating = isinstance(torch_type, torch.dtype) and torch_type.is_floating_point
    if dtype not in (None, "auto", *BITS) and not is_floating:
        raise unknown("floating point type", str(dtype), ("float64", "float32", "bfloat16", "float16", *BITS))


def _load_pretrained(
    name: str,
    dtype: str | torch.dtype | None,
    options: dict[str, Any],
    task: str | None,
    *,
    adapter: tuple[str, ...],
    allow_incomplete_weights: bool,
) -> PreTrainedModel:
    """Return a checked model, with the adapter in it if there is one."""
    require_local_model(name)
    check_files(name)
    with describe_load_errors(name):
        # The head that was trained with an adapter may have other classes than the base model's.
        configured = adapter[0] if adapter and has_own_config(adapter[0]) else name
        config = read_config(configured, trust_remote_code=options["trust_remote_code"])
        check_config(configured, config)
        if configured != name:
            read_config(name)
    loader = choose_loader(
        name, config, task, has_adapter=bool(adapter), trust_remote_code=options["trust_remote_code"]
    )
    with describe_load_errors(name, "weights"):
        loader = restore_scalar_mix(loader, config)
        # Mismatched sizes do not raise here, because `check_weights` reports them better.
        options = options | {"config": config, "use_safetensors": True, "ignore_mismatched_sizes": True}
        model, info = loader.from_pretrained(name, dtype=dtype or "auto", output_loading_info=True, **options)
    base = model
    for folder in adapter:
        model, modules = load_adapter(model, folder)
        # A head that comes with the adapter is missing in the base model's checkpoint.
        info["missing_keys"] = [key for key in info["missing_keys"] if not set(modules) & set(key.split("."))]
        info["mismatched_keys"] = [key for key in info["mismatched_keys"] if not set(modules) & set(key[0].split("."))]
    check_weights(name, base, info, allow_incomplete_weights=allow_incomplete_weights)
    restore_head_activation(base)
    return model


def load_processor(name: str, model: PreTrainedModel, trust_remote_code: bool) -> Any:
    """Return the tokenizer or image processor saved with the model, or None.

    Raises:
        ExpoundError: it is damaged.
    """
    if not name or (looks_local(name) and not Path(name).exists()):
        return None
    is_local, is_image = Path(name).is_dir(), model.main_input_name == "pixel_values"
    if type(model.config) in AutoModelForImageTextToText._model_mapping and (
        not is_local or any((Path(name) / file).exists() for file in OF_IMAGES_AND_TEXT)
    ):
        check_files(name)
        with describe_load_errors(name, "processor"):
            try:
                return AutoProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)
            # Some processors need torchvision, also for images alone; texts need only the tokenizer.
            except ImportError as error:
                logger.warning("prompts with images are not explained here: %s", shorten(error, 200))
    # transformers would make an empty tokenizer for a folder without one.
    if is_local and not any((Path(name) / file).exists() for file in PROCESSOR_FILES[is_image]):
        return None
    loader, kind = AutoTokenizer, "tokenizer"
    if is_image:
        loader, kind = AutoImageProcessor, "image processor"
    check_files(name)
    with describe_load_errors(name, kind):
        return loader.from_pretrained(name, trust_remote_code=trust_remote_code)
