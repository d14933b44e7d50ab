"""Training with the weights sharded over processes (FSDP)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import Trainer, TrainingArguments

from exegete.errors import ExegeteError

SHARDING_ERRORS = re.compile("DTensor|setStorage")
"""Words in torch's errors about weights of which this process has a shard only."""


def require_processes(args: TrainingArguments) -> None:
    """Raise ExegeteError if FSDP is to shard a model over a single process."""
    if args.fsdp and args.world_size < 2:
        raise ExegeteError("fsdp shards a model over processes: start several, by torchrun or accelerate launch")


def save_unsharded(trainer: Trainer) -> None:
    """Make the Trainer save sharded weights as one whole model.

    Raises:
        ExegeteError: Accelerate would ignore the argument `fsdp`.
    """
    if trainer.is_fsdp_enabled:
        plugin: Any = trainer.accelerator.state.fsdp_plugin
        plugin.set_state_dict_type("FULL_STATE_DICT")
    # Without GPUs Accelerate ignores `fsdp` silently, and each process would train a whole copy.
    elif trainer.args.fsdp and not trainer.is_fsdp_xla_enabled:
        raise ExegeteError("Accelerate shards models over GPUs only, and would train whole copies here: leave fsdp out")


@contextmanager
def explain_sharding_errors(terms: Sequence[str]) -> Iterator[None]:
    """Raise an ExegeteError that names the loss's terms if a step inside the block fails on sharded weights."""
    try:
        yield
    except RuntimeError as error:
        if not SHARDING_ERRORS.search(str(error)):
            raise
        raise ExegeteError(
            f"a term among {', '.join(terms)} reads weights, runs parts of the model or differentiates twice, which "
            "sharded weights do not allow: train without fsdp, or with terms that use the step's own pass only"
        ) from error
