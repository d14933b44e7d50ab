"""Which checkpoint a run can go on from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"
KEPT = ("optimizer.pt", "scheduler.pt")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, newest first."""
    numbered = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint that was written completely; what is torn is passed over with a warning."""
    for path in checkpoints(folder):
        flaw = next(flaws(path), None)
        if flaw is None:
            return path
        logger.warning("%s is not whole (%s): passed over", path, flaw)
    return None


def last_step(checkpoint: Path) -> int | None:
    """The step at which the training of a checkpoint was over by itself, as by early stopping; None: it goes on."""
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    over = state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"]
    return int(state["global_step"]) if over else None


def flaws(checkpoint: Path) -> Iterator[str]:
    """Names the files of a checkpoint that are missing or torn; the Trainer writes its state file last."""
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield f"{STATE}: {error}"
    weights = sorted(checkpoint.glob("*.safetensors"))
    if not weights:
        yield "no weights"
    for path in weights:
        try:
            with safe_open(path, framework="pt") as file:
                file.keys()
        except (OSError, SafetensorError) as error:
            yield f"{path.name}: {error}"
    archives = {checkpoint / name for name in KEPT} | set(checkpoint.glob("rng_state*.pth"))
    yield from (f"{path.name} is missing or torn" for path in sorted(archives) if not is_zipfile(path))
