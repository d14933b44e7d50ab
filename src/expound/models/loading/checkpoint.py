"""Checks of a checkpoint: whole and safe files, a configuration that fits the weights, a complete vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_flash_attention_utils import FLASH_ATTENTION_COMPATIBILITY_MATRIX
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file, logging

from expound.data.provenance import digest as digest_of
from expound.errors import ExpoundError, shorten
from expound.reports.text import is_interactive

COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
ACTIVATIONS = ("hidden_act", "activation_function", "hidden_activation")
IMPLEMENTATIONS = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "grouped_mm", "batched_mm"),
}
"""Implementations that a configuration may choose; transformers downloads code from the hub for most others."""
PLAIN_WEIGHTS = re.compile(r"[\w][\w. -]*\.safetensors")
UNUSED = re.compile(r"(^|\.)pooler\.|(position_ids|inv_freq|masked_bias|num_batches_tracked|attn\.bias)$")
"""Weights that may be left over: poolers that a head does not use, and buffers that older versions saved."""


@contextmanager
def describe_load_errors(name: str, what: str = "model") -> Iterator[None]:
    """Turn any exception of a library inside the block into an ExpoundError of one line.

    transformers draws progress bars also into logs; inside the block it does so only where a person sees them.

    Raises:
        ExpoundError: it names the checkpoint, and the file and key if they are known.
    """
    hides_bars = logging.is_progress_bar_enabled() and not is_interactive()
    if hides_bars:
        logging.disable_progress_bar()
    try:
        yield
    except ExpoundError:
        raise
    # Damaged files make libraries raise exceptions of any type, down to KeyError and panics of Rust code.
    except Exception as error:
        if "safetensors" in str(error) and _has_pickled_weights(name):
            raise make_pickle_error(name) from error
        raise ExpoundError(f"no {what} could be loaded from {name!r}: {_reason(error)}") from error
    finally:
        if hides_bars:
            logging.enable_progress_bar()


def check_files(name: str) -> None:
    """Raise ExpoundError for files of a folder that are no JSON objects, or have values of the wrong type."""
    folder = Path(name)
    if not folder.is_dir():
        return
    for file, keys in FILES.items():
        if (folder / file).is_file():
            check_json(folder / file, keys)


def check_json(path: Path, keys: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise ExpoundError for a file that is no JSON object, or has values of the wrong type under some keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise ExpoundError(f"{path} is no JSON that can be read: {shorten(error, 120)}") from error
    if not isinstance(content, dict):
        raise ExpoundError(f"{path}: expected a JSON object, got {type(content).__name__}")
    for key, kind in keys.items():
        if content.get(key) is not None and not isinstance(content[key], kind):
            raise ExpoundError(f"{path}: {key}: got {shorten(repr(content[key]), 60)} ({type(content[key]).__name__})")
    # transformers looks the type up as an attribute of torch, which has many that are no types.
    for key in ("dtype", "torch_dtype"):
        if path.name == "config.json" and isinstance(content.get(key), str):
            _check_dtype(f"{path}: {key}", content[key])


def _check_dtype(where: str, name: str) -> None:
    found = getattr(torch, name.removeprefix("torch."), None)
    if name != "auto" and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ExpoundError(f"{where}: expected float64, float32, bfloat16 or float16, got {name!r:.60}")


FILES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "config.json": {
        "model_type": str,
        "architectures": list,
        "id2label": dict,
        "label2id": dict,
        "dtype": (str, dict),
        "torch_dtype": str,
        "quantization_config": dict,
    },
    "tokenizer_config.json": {"tokenizer_class": str, "model_max_length": (int, float), "added_tokens_decoder": dict},
    "tokenizer.json": {"model": dict, "added_tokens": list},
    "special_tokens_map.json": {},
    "preprocessor_config.json": {},
    "model.safetensors.index.json": {"weight_map": dict},
}
"""The files of a checkpoint that are JSON objects, and the types of keys that libraries read without a check."""


def check_config(name: str, config: Any) -> None:
    """Raise ExpoundError, naming the key, for a configuration that no model can be built from."""
    for key, expected in _find_wrong_keys(config):
        value = getattr(config, key)
        raise ExpoundError(f"{_config_of(name)}: {key}: expected {expected}, got {shorten(repr(value), 60)}")


def _find_wrong_keys(config: Any) -> Iterator[tuple[str, str]]:
    """Yield keys with impossible values, and what is expected of the values."""
    values = {key: getattr(config, key, None) for key in (*COUNTS, *ACTIVATIONS, "pad_token_id", "architectures")}
    for key, value in values.items():
        if key in COUNTS and isinstance(value, int) and value < 1:
            yield key, "a number of at least 1"
        if key in ACTIVATIONS and isinstance(value, str) and value not in ACT2FN:
            yield key, "an activation of transformers"
    architectures = values["architectures"] or []
    if not all(isinstance(name, str) for name in architectures):
        yield "architectures", "names"
    elif getattr(config, "is_decoder", False) and not any("CausalLM" in name for name in architectures):
        # BERT with is_decoder=True reads its first token under a causal mask.
        yield "is_decoder", "false: its head reads the first token, which would see no other"
    # Chunked feed-forwards require lengths that are multiples of the chunk.
    if getattr(config, "chunk_size_feed_forward", 0):
        yield "chunk_size_feed_forward", "0, since texts have any length"
    if sorted(config.id2label) != list(range(len(config.id2label))):
        yield "id2label", "a name for each output from 0"
    words, pad = values["vocab_size"], values["pad_token_id"]
    if isinstance(words, int) and isinstance(pad, int) and pad >= words:
        yield "pad_token_id", f"an id below vocab_size, {words}"


def check_implementations(name: str, config: Any) -> None:
    """Raise ExpoundError if a configuration, or one inside it, chooses attention or experts that run downloaded code.

    transformers takes a name such as `owner/kernel` for a repository of the hub whose code it loads, and replaces
    flash attention by such a repository where its package is not installed.
    """
    inner: list[tuple[str, Any]] = [("", config)]
    while inner:
        key, value = inner.pop()
        if isinstance(value, PreTrainedConfig):
            value = vars(value)
        for kind in IMPLEMENTATIONS:
            if kind in key and value is not None and not isinstance(value, dict):
                _check_implementation(f"{_config_of(name)}: {key.removesuffix('_internal')}", kind, value)
        if isinstance(value, dict):
            # A mapping names the implementation of each part of the model.
            is_choice = any(kind in key for kind in IMPLEMENTATIONS)
            inner += [(key if is_choice else str(part), each) for part, each in value.items()]
        elif isinstance(value, list | tuple):
            inner += [(key, each) for each in value]


def _check_implementation(where: str, kind: str, value: Any) -> None:
    allowed = [*IMPLEMENTATIONS[kind]]
    if kind == "attn_implementation":
        for version, checks in FLASH_ATTENTION_COMPATIBILITY_MATRIX.items():
            if checks["general_availability_check"]():
                allowed.append(f"flash_attention_{version}")
    if value not in allowed:
        raise ExpoundError(
            f"{where}: expected one of {', '.join(allowed)}, got {shorten(repr(value), 60)}: where you trust it, load "
            "the model with transformers and give the loaded model"
        )


def check_weight_names(name: str, config: Any) -> None:
    """Raise ExpoundError for weights in files that are not safetensors, or not in the folder of the checkpoint.

    transformers chooses how to read a file by the end of its name, and takes names from the index as they are.
    """
    explicit = getattr(config, "transformers_weights", None)
    if explicit is not None:
        _check_weight_name(f"{_config_of(name)}: transformers_weights", explicit)
    # A hub that cannot be reached is reported when the weights are loaded.
    try:
        index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False)
    except OSError:
        return
    if index is None:
        return
    check_json(Path(index), FILES[SAFE_WEIGHTS_INDEX_NAME])
    for key, value in (json.loads(Path(index).read_text(encoding="utf-8")).get("weight_map") or {}).items():
        _check_weight_name(f"{name}/{SAFE_WEIGHTS_INDEX_NAME}: {shorten(key, 60)}", value)


def _check_weight_name(where: str, value: Any) -> None:
    if not isinstance(value, str) or not PLAIN_WEIGHTS.fullmatch(value):
        raise ExpoundError(f"{where}: expected a *.safetensors file of the same folder, got {shorten(repr(value), 60)}")


def check_weights(
    name: str, model: PreTrainedModel, info: Mapping[str, Any], *, allow_incomplete_weights: bool = False
) -> None:
    """Raise ExpoundError if checkpoint and configuration disagree, or a weight is not finite.

    Args:
        name: the checkpoint.
        model: the model that was loaded.
        info: transformers' report on loading it.
        allow_incomplete_weights: allow missing and unused weights.
    """
    for key, there, here in sorted(info.get("mismatched_keys") or ()):
        raise ExpoundError(
            f"{_config_of(name)} contradicts the weights: {key} is {list(there)} in the checkpoint, and "
            f"{list(here)} in the model that the configuration describes"
        )
    missing = sorted(info.get("missing_keys") or ())
    # A pretraining head in the checkpoint is no part of this model, so its weights are left over rightly.
    parts = {part for part, _ in model.named_children()}
    unexpected = info.get("unexpected_keys") or ()
    unused = sorted(key for key in unexpected if key.split(".")[0] in parts and not UNUSED.search(key))
    for keys, what in (
        (missing, "lacks weights"),
        (unused, "has weights that the model of its config.json has no place for"),
    ):
        if keys and not allow_incomplete_weights:
            shown = keys[0]
            if len(keys) > 1:
                shown += f" and {len(keys) - 1} more"
            raise ExpoundError(
                f"{name} {what} ({shown}): an explanation of what is left means nothing; "
                "allow_incomplete_weights=True (--allow-incomplete) explains it all the same"
            )
    # Quantized weights are integers by design; others would be converted silently.
    if not getattr(model.config, "quantization_config", None):
        floating = {key for key, weight in model.named_parameters() if weight.is_floating_point()}
        for path in sorted(Path(name).glob("*.safetensors")):
            _check_stored_types(path, floating)
    check_finite(name, model)


def _check_stored_types(path: Path, floating: set[str]) -> None:
    with safe_open(path, framework="pt") as file:
        for key in floating & set(file.keys()):
            if file.get_slice(key).get_dtype().startswith(("I", "U", "BOOL")):
                raise ExpoundError(f"{path}: the weight {key} is stored as whole numbers")


@torch.no_grad()
def check_finite(name: str, model: nn.Module) -> None:
    """Raise ExpoundError naming the first weight with NaN or an infinite number."""
    for key, weight in model.named_parameters():
        # Offloaded weights are not in memory.
        is_known = weight.is_floating_point() and weight.device.type != "meta" and weight.numel()
        # Minimum and maximum are NaN if any weight is; unlike `isfinite`, they need no tensor of the weight's size.
        if is_known and not bool(torch.stack(weight.aminmax()).isfinite().all()):
            raise ExpoundError(f"{name or type(model).__name__}: the weight {key} holds NaN or an infinite number")


def make_pickle_error(name: str, code: str = "") -> ExpoundError:
    """Return the error for pickled weights, which could run code when read; `code` is a command that converts them."""
    model = (
        "import transformers as t; t.AutoModelForSequenceClassification.from_pretrained('OLD').save_pretrained('NEW')"
    )
    return ExpoundError(
        f"{name} holds pickled weights, which can run code and are never read here. Where you trust them, convert: "
        f'python -c "{code or model}"'
    )


def _has_pickled_weights(name: str) -> bool:
    folder = Path(name)
    return not folder.is_dir() or any(folder.glob("*.bin")) or any(folder.glob("*.pt"))


def _config_of(name: str) -> str:
    return f"{name}/config.json"


def _reason(error: Exception) -> str:
    """Return a library's error as one line: the wrong key, if the error names it."""
    text = " ".join(str(error).split())
    field = re.search(r"Validation error for field '(\w+)': (?:\w+: )?(.*)", text)
    if field:
        return f"config.json: {field[1]}: {shorten(field[2], 120)}"
    known = isinstance(error, OSError | ValueError | RuntimeError | SafetensorError)
    return shorten(text if known and text else f"{type(error).__name__}: {text}", 200)


SAMPLE = 60
FEWEST = 0.2
"""The share of sampled words that a tokenizer must tokenize as its own words."""
WORDS = (
    "the and is of a to in it that was for on with as be this are not but have",
    "der die und ist das nicht ein zu mit auf",
    "le la et les des est un une pas que",
    "el los que de y en una por con no",
    "и в не на что с как это по но",
    "的 是 在 不 了 有 我 人 这 他",
    "が は を に の と で も する ない",
    "في من على أن إلى هذا عن مع لا ما",
)
"""The most frequent words of some languages, one of which any usable vocabulary knows."""


def check_vocabulary(name: str, tokenizer: Any, rows: int | None) -> None:
    """Raise ExpoundError for a tokenizer that would give the model other tokens than it was trained on.

    transformers loads a damaged or missing vocabulary without an error, and most words become the unknown token.

    Args:
        name: the checkpoint.
        tokenizer: the tokenizer; image processors, which have no vocabulary, pass.
        rows: the number of the model's embeddings; None for models that look up none, which pass.
    """
    if rows is None or not hasattr(tokenizer, "get_vocab"):
        return
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    word, highest = max(vocabulary.items(), key=itemgetter(1), default=("", -1))
    if highest >= rows:
        raise ExpoundError(
            f"the tokenizer of {name} has the token {word!r:.40} with id {highest}, the model has embeddings for "
            f"{rows} tokens: they do not belong together"
        )
    length = getattr(tokenizer, "model_max_length", None)
    if isinstance(length, int | float) and length < 4:
        raise ExpoundError(f"the tokenizer of {name} has model_max_length {length}: nothing fits into that")
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    ordinary = sorted((word for word in vocabulary if word not in special), key=lambda word: (-len(word), word))
    if not ordinary:
        raise ExpoundError(f"the tokenizer of {name} knows no word: files of it are missing, as tokenizer.json")
    if _share_known(tokenizer, ordinary) < FEWEST:
        raise ExpoundError(f"the tokenizer of {name} does not know the words of its own vocabulary: it is not whole")
    if len(vocabulary) < rows / 2 and all(_is_mostly_unknown(tokenizer, words) for words in WORDS):
        raise ExpoundError(
            f"the tokenizer of {name} knows {len(vocabulary)} tokens, the model {rows}, and ordinary words are unknown "
            "to it: its vocabulary is not whole"
        )


def _share_known(tokenizer: Any, ordinary: list[str]) -> float:
    """Return the share of sampled words that are tokenized as themselves or into few parts."""
    # Short words would be tokenized by characters without any merge rules, so only the longer half is sampled.
    longer = ordinary[: max(SAMPLE, len(ordinary) // 2)]
    words = {tokenizer.convert_tokens_to_string([word]).strip() for word in longer[:: 1 + len(longer) // SAMPLE]}
    cut = {word: _tokenize(tokenizer, word) for word in words if word.isalpha() and len(word) > 1}
    kept = [tokenizer.unk_token_id not in ids and len(ids) <= len(word) // 2 for word, ids in cut.items()]
    return sum(kept) / len(kept) if kept else 1.0


def _is_mostly_unknown(tokenizer: Any, text: str) -> bool:
    """Return whether more than half of a text's tokens are unknown."""
    ids = _tokenize(tokenizer, text)
    return not ids or ids.count(tokenizer.unk_token_id) > len(ids) / 2


def _tokenize(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def digest_weights(model: nn.Module) -> str:
    """Return a digest of up to 4,096 evenly spread values of every weight."""
    # A sample, because hashing all weights of a large model takes longer than explaining a text.
    digest = blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].double().cpu()
        digest.update(f"{name} {tuple(value.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def digest_processor(processor: Any) -> str:
    """Return a digest of a tokenizer's or image processor's settings, truncation and padding left out."""
    if hasattr(processor, "backend_tokenizer"):
        return digest_of(get_tokenizer_definition(processor))
    return digest_of(processor.to_dict() if hasattr(processor, "to_dict") else None)


def get_tokenizer_definition(tokenizer: Any) -> dict[str, Any]:
    """Return all settings that decide how a text is tokenized, without its length."""
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    # Fast tokenizers keep the truncation and padding of their latest call.
    return {name: value for name, value in whole.items() if name not in ("truncation", "padding")}
