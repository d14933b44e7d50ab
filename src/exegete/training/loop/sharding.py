"""Training with the weights in shards over processes (FSDP)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import Trainer, TrainingArguments

from exegete.errors import ExegeteError

IN_SHARDS = re.compile("DTensor|setStorage")
"""Words of torch's errors about weights that are not here as a whole."""


def require_processes(args: TrainingArguments) -> None:
    """Raises ExegeteError where one process is to share a model with none."""
    if args.fsdp and args.world_size < 2:
        raise ExegeteError("fsdp shards a model over processes: start several, by torchrun or accelerate launch")


def save_unsharded(trainer: Trainer) -> None:
    """Has a model in shards saved whole. Raises ExegeteError where Accelerate would pass over `fsdp`."""
    if trainer.is_fsdp_enabled:
        plugin: Any = trainer.accelerator.state.fsdp_plugin
        plugin.set_state_dict_type("FULL_STATE_DICT")
    elif trainer.args.fsdp and not trainer.is_fsdp_xla_enabled:
        raise ExegeteError("Accelerate shards models over GPUs alone, and would train whole copies: leave fsdp out")


@contextmanager
def explain_sharding_errors(terms: Sequence[str]) -> Iterator[None]:
    """Names the terms of a loss in one of which a step in shards fails. Raises ExegeteError."""
    try:
        yield
    except RuntimeError as error:
        if not IN_SHARDS.search(str(error)):
            raise
        raise ExegeteError(
            f"a term among {', '.join(terms)} reads weights, runs parts of the model or differentiates twice, which "
            "weights in shards do not allow: train without fsdp, or with terms that look at the step's own pass"
        ) from error
