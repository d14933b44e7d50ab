"""Adapters trained with PEFT, loaded into the model that they were trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedModel
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, cached_file
from transformers.utils.peft_utils import find_adapter_config_file

from expound.errors import ExpoundError, shorten
from expound.models.loading.checkpoint import (
    check_files,
    check_implementations,
    check_json,
    check_weight_names,
    describe_load_errors,
    make_pickle_error,
)

WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
PATTERNS = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "target_parameters",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
)
"""Keys whose texts peft matches with the names of modules as regular expressions."""
MODULE_NAME = re.compile(r"[\w.^$\\-]*")
"""A name of a module, or of several by anchors and dots; no repetition, whose matching can take hours."""
CONVERT = f"import torch, safetensors.torch as s; s.save_file(torch.load('{PICKLED}', weights_only=True), '{WEIGHTS}')"


def find_adapter_base(name: str) -> str | None:
    """Return the name of the model that the adapter at `name` was trained on; None if there is no adapter.

    Raises:
        ExpoundError: an adapter that cannot be read, or does not name its model.
    """
    if Path(name).is_dir() and not (Path(name) / ADAPTER_CONFIG_NAME).exists():
        return None
    config = _read_adapter_config(name)
    if config is None:
        return None
    base = config.get("base_model_name_or_path")
    if not base:
        raise ExpoundError(f"the adapter at {name} does not say which model it was trained on: load both with peft")
    return str(base)


def _read_adapter_config(name: str) -> dict[str, Any] | None:
    """Return the checked configuration of an adapter, or None if there is no adapter at `name`."""
    # A hub that cannot be reached is reported later, when the model itself is loaded.
    try:
        file = find_adapter_config_file(name)
    except (OSError, ValueError):
        return None
    if file is None:
        return None
    with describe_load_errors(name, "adapter"):
        check_json(Path(file), {})
        config: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    for key in PATTERNS:
        _check_module_names(f"{file}: {key}", config.get(key))
    if config.get("peft_type") == "XLORA" or config.get("megatron_config"):
        raise ExpoundError(f"{file} names further adapters or modules to import, which are never loaded here")
    return config


def _check_module_names(where: str, value: Any) -> None:
    """Raise ExpoundError for a regular expression that chooses modules: a hostile one takes hours to match."""
    names = value if isinstance(value, list | dict) else () if value in (None, "all-linear") else None
    if names is None or not all(isinstance(name, str) and MODULE_NAME.fullmatch(name) for name in names):
        raise ExpoundError(f"{where}: expected a list of names of modules, got {shorten(repr(value), 60)}")


def _require_safe_weights(name: str) -> None:
    """Raise ExpoundError unless the weights of the adapter are in safetensors."""
    if not Path(name).is_dir():
        # peft would take pickled weights of the hub where there are no others.
        try:
            found = cached_file(name, WEIGHTS, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            raise ExpoundError(f"the weights of the adapter {name} cannot be read: {shorten(error, 120)}") from error
        if found is None:
            raise make_pickle_error(name, CONVERT)
    elif not (Path(name) / WEIGHTS).is_file():
        if not (Path(name) / PICKLED).exists():
            raise ExpoundError(f"the adapter at {name} has no weights: {WEIGHTS} is missing")
        raise make_pickle_error(name, CONVERT)


def read_config(name: str, *, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a checkpoint from which a model can be loaded without running code of its files.

    Raises:
        ExpoundError: the configuration chooses downloaded code, or weights are pickled or lie elsewhere.
    """
    check_files(name)
    config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    check_implementations(name, config)
    check_weight_names(name, config)
    # transformers loads an adapter that lies beside a model by itself.
    if _read_adapter_config(name) is not None:
        _require_safe_weights(name)
    return config


def has_own_config(name: str) -> bool:
    """Return whether the configuration of the adapted model, with its head and labels, is saved beside the adapter."""
    return cached_file(name, CONFIG_NAME, _raise_exceptions_for_missing_entries=False) is not None


def load_adapter(model: PreTrainedModel, name: str) -> tuple[Any, Sequence[str]]:
    """Return the model with the adapter in it, and the names of whole modules that come with the adapter.

    Raises:
        ExpoundError: peft is not installed; weights that are missing, pickled or of another model.
    """
    # Imported here: peft is an extra that only adapters need.
    try:
        from peft import PeftModel  # noqa: PLC0415
    except ImportError as error:
        raise ExpoundError(f"{name} is an adapter: install expound[lora] to load it") from error
    _require_safe_weights(name)
    try:
        loaded = PeftModel.from_pretrained(model, name)
    # Damaged configurations make peft raise exceptions of any type.
    except Exception as error:
        raise ExpoundError(f"the adapter at {name} does not fit its model: {shorten(error, 200)}") from error
    # A classifier's head is trained and saved as a whole, beside the low-rank updates of other layers.
    modules = loaded.peft_config["default"].modules_to_save
    return loaded, tuple(modules or ())
