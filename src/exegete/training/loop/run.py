"""A run's folder: what is in it, whether it is finished, and from where it goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from exegete.data.atomic_files import LOCK, only_writer, remove_abandoned_lock
from exegete.data.provenance import get_versions, write_json
from exegete.errors import ExegeteError, shorten
from exegete.training.loop.checkpoints import checkpoints, flaws, newest_whole

RECORD = "exegete_run.json"
METRICS = "metrics.json"
HISTORY = "history.json"
UNWRITTEN = ("PytorchStreamWriter", "iostream", "inline_container")
"""Words of torch's RuntimeErrors for files that it cannot write."""


@dataclass(frozen=True)
class Run:
    """A folder and the resolved configuration of what is trained into it.

    `exegete_run.json` says `"status": "running"` from the start and `"finished"` only when everything else is written.
    """

    folder: Path
    config: Mapping[str, Any]

    def finished(self) -> Mapping[str, Any] | None:
        """The metrics of a finished run with this very configuration; None when there is none.

        A lock that is left there, of a process that was killed after it had finished the run, goes.
        """
        record = self._record()
        if record is None or record["status"] != "finished" or self._difference(record) is not None:
            return None
        remove_abandoned_lock(self.folder)
        metrics: Mapping[str, Any] = json.loads((self.folder / METRICS).read_text(encoding="utf-8"))
        return metrics

    @contextmanager
    def writing(self, *, writes: bool = True) -> Iterator[None]:
        """Inside the block nobody else can write into the folder; what cannot be written leaves nothing torn.

        Raises:
            ExegeteError: another process writes there, or the disk takes no more.
        """
        if not writes:
            yield
            return
        with only_writer(self.folder):
            try:
                yield
            except (OSError, RuntimeError, SafetensorError) as error:
                if isinstance(error, RuntimeError) and not any(word in str(error) for word in UNWRITTEN):
                    raise
                if isinstance(error, OSError) and error.errno is None:  # of a connection, not of a file
                    raise
                self._remove_torn()
                raise ExegeteError(
                    f"the run in {self.folder} cannot be written: {shorten(error, 120)}; make room, and the same "
                    "command goes on from the newest whole checkpoint"
                ) from error

    @property
    def unnamed(self) -> Path:
        """Where the finished model is written before `finish`: empty."""
        folder = self.folder / ".finished"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def begin(self, *, resume: bool, overwrite: bool, writes: bool = True) -> Path | None:
        """The checkpoint to go on from, None to start anew. Only the process that `writes` changes the folder.

        Raises:
            ExegeteError: another run is there, or something that is no run, and `overwrite` is off.
        """
        record = self._record()
        if not overwrite:
            self._require_ours(record)
        same = record is not None and self._difference(record) is None
        if same and resume and not overwrite:
            return newest_whole(self.folder)
        if writes:
            self._clear()
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / RECORD, {"status": "running", "config": self.config, "versions": get_versions()})
        return None

    def finish(self, written: Path, metrics: Mapping[str, Any]) -> None:
        """Takes the finished model's files, `written` into a folder of their own, to their final names."""
        for file in sorted(written.iterdir()):
            target = self.folder / file.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(file, target)
        written.rmdir()
        write_json(self.folder / METRICS, metrics)
        record = {"status": "finished", "config": self.config, "versions": get_versions()}
        write_json(self.folder / RECORD, record)
        self._remove_torn()

    def _remove_torn(self) -> None:
        """Removes checkpoints that are not whole, and what was to be a finished model."""
        shutil.rmtree(self.folder / ".finished", ignore_errors=True)
        for path in checkpoints(self.folder):
            if any(True for _ in flaws(path)):
                shutil.rmtree(path, ignore_errors=True)

    def _record(self) -> Mapping[str, Any] | None:
        path = self.folder / RECORD
        if not path.is_file():
            return None
        try:
            record: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ExegeteError(f"{path} is damaged ({error}): choose another folder, or overwrite this one") from error
        return record

    def _require_ours(self, record: Mapping[str, Any] | None) -> None:
        if record is None:
            if self.folder.is_dir() and any(path.name != LOCK for path in self.folder.iterdir()):
                raise ExegeteError(f"{self.folder} holds something else: choose another folder, or overwrite this one")
            return
        difference = self._difference(record)
        if difference is not None:
            raise ExegeteError(
                f"{self.folder} holds a run with another configuration ({difference}): "
                "choose another folder, or overwrite this one"
            )

    def _difference(self, record: Mapping[str, Any]) -> str | None:
        """The first setting in which a recorded run differs from this one."""
        there, here = _flat(record["config"]), _flat(json.loads(json.dumps(self.config)))
        for name in sorted(there.keys() | here.keys(), key=lambda name: (name.startswith("model."), name)):
            if name.endswith(".source"):
                continue
            if there.get(name) != here.get(name):
                return f"{name}: there {there.get(name)!r}, here {here.get(name)!r}"
        return None

    def _clear(self) -> None:
        """Removes what runs leave behind, and nothing else."""
        for path in checkpoints(self.folder):
            shutil.rmtree(path)
        for name in (RECORD, METRICS, HISTORY):
            (self.folder / name).unlink(missing_ok=True)


def note(folder: Path, facts: Mapping[str, Any]) -> None:
    """Adds facts to a run's record that its outcome does not depend on; they are not compared with another run's."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    write_json(folder / RECORD, record | facts)


def vocabulary_digest(processor: Any) -> str | None:
    """A digest of a tokenizer's vocabulary; None for an image processor."""
    if not hasattr(processor, "get_vocab"):
        return None
    return blake2b(repr(sorted(processor.get_vocab().items())).encode(), digest_size=8).hexdigest()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix.removesuffix("."): value}
    return {key: v for name, inner in value.items() for key, v in _flat(inner, f"{prefix}{name}.").items()}
