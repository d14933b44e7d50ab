"""The folder of a training run: its record, its checkpoints, and the files of the finished model."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

from expound.data.atomic_files import LOCK, only_writer, remove_abandoned, remove_abandoned_lock
from expound.data.provenance import FINISHED, RUNNING, OtherRunError, RunFolder, write_json
from expound.errors import ExpoundError, shorten

logger = logging.getLogger(__name__)

METRICS = "metrics.json"
HISTORY = "history.json"
STAGING = ".finished"
STATE = "trainer_state.json"
ARCHIVES = ("optimizer.pt", "scheduler.pt")
WRITE_ERRORS = ("PytorchStreamWriter", "iostream", "inline_container")
"""Parts of torch's RuntimeErrors for files that cannot be written."""


@dataclass(frozen=True)
class TrainingRun(RunFolder):
    """A folder and the resolved configuration of the model that is trained into it."""

    def finished_metrics(self) -> Mapping[str, Any] | None:
        """Return the metrics of a finished run with this configuration, or None if there is no such run."""
        try:
            record = self.read()
        except OtherRunError:
            return None
        if record is None or record["status"] != FINISHED:
            return None
        # A process that was killed after it had finished the run leaves its lock behind.
        remove_abandoned_lock(self.folder)
        metrics: Mapping[str, Any] = json.loads((self.folder / METRICS).read_text(encoding="utf-8"))
        return metrics

    @contextmanager
    def writing(self, *, writes: bool = True) -> Iterator[None]:
        """Lock the folder inside the block; after a failed write, remove the files that are incomplete.

        Args:
            writes: whether this process writes; False takes no lock.

        Raises:
            ExpoundError: another process writes there, or a file cannot be written, as on a full disk.
        """
        if not writes:
            yield
            return
        with only_writer(self.folder):
            try:
                yield
            except (OSError, RuntimeError, SafetensorError) as error:
                # torch raises plain RuntimeErrors for full disks; all others are errors of the training itself.
                if isinstance(error, RuntimeError) and not any(word in str(error) for word in WRITE_ERRORS):
                    raise
                # An OSError without a number comes from a connection, not from a file.
                if isinstance(error, OSError) and error.errno is None:
                    raise
                self._remove_incomplete()
                raise ExpoundError(
                    f"the run in {self.folder} cannot be written: {shorten(error, 120)}; free some space, and the same "
                    "command resumes from the newest complete checkpoint"
                ) from error

    def empty_staging_folder(self) -> Path:
        """Return the folder that the finished model is written to before `finish`, emptied."""
        folder = self.folder / STAGING
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def begin(self, *, resume: bool, overwrite: bool, writes: bool = True) -> Path | None:
        """Return the checkpoint to resume from, or None to start anew. Only the process that `writes` changes the run.

        Raises:
            ExpoundError: the folder holds another run or other files, and `overwrite` is False.
        """
        # A process that was killed as it wrote the first record leaves a part of it, which is no file of somebody else.
        remove_abandoned(self.record_path)
        if not overwrite:
            record = self.read()
            if record is None and self.folder.is_dir() and any(path.name != LOCK for path in self.folder.iterdir()):
                raise ExpoundError(f"{self.folder} holds something else: {self.advice}")
            if record is not None and resume:
                return find_newest_checkpoint(self.folder)
        if writes:
            self._clear()
            self.write(RUNNING)
        return None

    def finish(self, staging: Path, metrics: Mapping[str, Any]) -> None:
        """Move the finished model's files from the staging folder to their final names, and mark the run finished."""
        for file in sorted(staging.iterdir()):
            target = self.folder / file.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(file, target)
        staging.rmdir()
        write_json(self.folder / METRICS, metrics)
        # The record is written last: if the process is killed before, the run counts as unfinished and is resumed.
        self.write(FINISHED)
        self._remove_incomplete()

    def _remove_incomplete(self) -> None:
        """Remove incomplete checkpoints and an incomplete finished model."""
        shutil.rmtree(self.folder / STAGING, ignore_errors=True)
        for path in list_checkpoints(self.folder):
            if any(find_flaws(path)):
                shutil.rmtree(path, ignore_errors=True)

    def _clear(self) -> None:
        """Remove the files that runs leave behind, and no others."""
        for path in list_checkpoints(self.folder):
            shutil.rmtree(path)
        for name in (self.record_name, METRICS, HISTORY):
            (self.folder / name).unlink(missing_ok=True)


def vocabulary_digest(processor: Any) -> str | None:
    """Return a digest of a tokenizer's vocabulary, or None for an image processor."""
    if not hasattr(processor, "get_vocab"):
        return None
    return blake2b(repr(sorted(processor.get_vocab().items())).encode(), digest_size=8).hexdigest()


# -- checkpoints -----------------------------------------------------------------------------------------------------


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a run's folder, complete or not, newest first."""
    numbered = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)


def find_newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; incomplete ones are skipped with a warning."""
    for path in list_checkpoints(folder):
        flaw = next(find_flaws(path), None)
        if flaw is None:
            return path
        logger.warning("%s is not complete (%s): skipped", path, flaw)
    return None


def read_final_step(checkpoint: Path) -> int | None:
    """Return the step at which early stopping ended the training of a checkpoint, or None if it was not over."""
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    was_over = state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"]
    return int(state["global_step"]) if was_over else None


def find_flaws(checkpoint: Path) -> Iterator[str]:
    """Yield a description of every missing or damaged file of a checkpoint."""
    # The Trainer writes its state file last, so a process killed while saving leaves none, or half of one.
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield f"{STATE}: {error}"
    weights = sorted(checkpoint.glob("*.safetensors"))
    if not weights:
        yield "no weights"
    for path in weights:
        # Opening reads the header only, which already says how long the file must be.
        try:
            with safe_open(path, framework="pt") as file:
                file.keys()
        except (OSError, SafetensorError) as error:
            yield f"{path.name}: {error}"
    archives = {checkpoint / name for name in ARCHIVES} | set(checkpoint.glob("rng_state*.pth"))
    for path in sorted(archives):
        # A zip archive's directory is at its end: a truncated file is not recognized as one.
        if not is_zipfile(path):
            yield f"{path.name} is missing or damaged"
