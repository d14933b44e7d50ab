"""Adapters trained with PEFT, loaded into the model that they were trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, cached_file
from transformers.utils.peft_utils import find_adapter_config_file

from expound.errors import ExpoundError
from expound.models.loading.checkpoint import describe_load_errors, make_pickle_error

WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
CONVERT = f"import torch, safetensors.torch as s; s.save_file(torch.load('{PICKLED}', weights_only=True), '{WEIGHTS}')"


def find_adapter_base(name: str) -> str | None:
    """Return the name of the model that the adapter at `name` was trained on; None if there is no adapter.

    Raises:
        ExpoundError: an adapter that cannot be read, or does not name its model.
    """
    if Path(name).is_dir() and not (Path(name) / ADAPTER_CONFIG_NAME).exists():
        return None
    # A hub that cannot be reached is reported later, when the model itself is loaded.
    try:
        file = find_adapter_config_file(name)
    except (OSError, ValueError):
        return None
    if file is None:
        return None
    with describe_load_errors(name, "adapter"):
        base = json.loads(Path(file).read_text()).get("base_model_name_or_path")
    if not base:
        raise ExpoundError(f"the adapter at {name} does not say which model it was trained on: load both with peft")
    return str(base)


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
    if Path(name).is_dir() and not (Path(name) / WEIGHTS).exists():
        if not (Path(name) / PICKLED).exists():
            raise ExpoundError(f"the adapter at {name} has no weights: {WEIGHTS} is missing")
        raise make_pickle_error(name, CONVERT)
    try:
        loaded = PeftModel.from_pretrained(model, name)
    except (OSError, ValueError, RuntimeError) as error:
        raise ExpoundError(f"the adapter at {name} does not fit its model: {str(error).splitlines()[0]}") from error
    # A classifier's head is trained and saved as a whole, beside the low-rank updates of other layers.
    modules = loaded.peft_config["default"].modules_to_save
    return loaded, tuple(modules or ())
