"""Provenance of results: versions of libraries, digests of data, and folders with a record of their configuration."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expound.data.atomic_files import atomic_file
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Dataset

LIBRARIES = ("expound", "torch", "transformers", "accelerate", "captum", "numpy", "datasets", "pyarrow")


def get_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that results depend on."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        found = _find_version(name)
        if found is not None:
            installed[name] = found
    return installed


@cache
def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def digest(value: Any) -> str:
    """Return a digest (16 hexadecimal digits) of a JSON-like value that does not depend on the order of keys."""
    # surrogatepass, because a value may hold text that was cut within a surrogate pair
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def digest_data(dataset: Dataset) -> str:
    """Return a digest of the values of a dataset."""
    import pyarrow as pa

    # one chunk and no metadata: equal rows give equal bytes, however the dataset was loaded
    table = dataset.with_format("arrow")[:].combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
        stream.write_table(table.replace_schema_metadata(None))
    return blake2b(sink.getvalue(), digest_size=8).hexdigest()


def summarize_data(dataset: Dataset) -> dict[str, Any]:
    """Return the number of `rows` of a dataset and the `digest` of its values, for a run's record."""
    return {"rows": len(dataset), "digest": digest_data(dataset)}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value as indented JSON, atomically; NaN and infinity become null."""
    with atomic_file(path) as fresh:
        text = json.dumps(to_json_value(value), indent=2, ensure_ascii=False, allow_nan=False)
        fresh.write_text(text + "\n", encoding="utf-8")


def to_json_value(value: Any) -> Any:
    """Return the value as JSON types: keys become strings, arrays lists, NaN and infinity null, other types text."""
    if isinstance(value, Mapping):
        return {str(name): to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "tolist"):
        return to_json_value(value.tolist())
    return str(value)


RECORD = "expound_run.json"
RUNNING, FINISHED = "running", "finished"
OTHER_FOLDER = "choose another folder, or pass overwrite=True (--overwrite)"


class OtherRunError(ExpoundError):
    """A folder belongs to another configuration."""


@dataclass(frozen=True)
class RunFolder:
    """A folder and the configuration that its content depends on.

    The record has the status "running" from the start, and "finished" once all other files are written.

    Args:
        folder: the folder.
        config: everything that the content depends on, see `to_json_value`.
        other: what a folder with another configuration holds, for a message; it is formatted with the first
            `difference` and the `names` of all settings that differ.
        advice: what to do then.
        ignored: dotted names of settings that are not compared.
        record_name: file name of the record.
    """

    folder: Path
    config: Mapping[str, Any]
    other: str = "a run with another configuration ({difference})"
    advice: str = OTHER_FOLDER
    # The same data or model may lie at another path; their digests are compared instead.
    ignored: re.Pattern[str] = re.compile(r".*\.source")
    record_name: str = RECORD

    @property
    def record_path(self) -> Path:
        """The path of the record."""
        return self.folder / self.record_name

    def read(self) -> dict[str, Any] | None:
        """Return the record, or None in a folder without one.

        Raises:
            OtherRunError: the record has another configuration.
            ExpoundError: the record is damaged.
        """
        if not self.record_path.is_file():
            return None
        try:
            record = read_record(self.record_path)
            differences = self._find_differences(record["config"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExpoundError(
                f"{self.record_path} is damaged ({error}): choose another folder, or remove this one"
            ) from error
        if differences:
            names = dict.fromkeys(name.partition(".")[0] for name in differences)
            other = self.other.format(difference=next(iter(differences.values())), names=", ".join(names))
            # The method's name says more than the first setting that differs.
            if "recipe" in record:
                other = other.replace("a run", f"a run of {record['recipe']}", 1)
            raise OtherRunError(f"{self.folder} holds {other}: {self.advice}")
        return record

    def write(self, status: str, **facts: Any) -> None:
        """Write the record; the folder is created if it does not exist. `facts` are not compared."""
        write_json(self.record_path, {"status": status, "config": self.config, "versions": get_versions(), **facts})

    def _find_differences(self, recorded_config: Mapping[str, Any]) -> dict[str, str]:
        """Describe the settings in which a recorded configuration differs, by dotted name."""
        recorded, own = flatten(recorded_config), flatten(to_json_value(self.config))
        differences = {}
        # The model comes last: its digest also differs if, say, the seed does, which tells the user more.
        for name in sorted(recorded.keys() | own.keys(), key=lambda name: (name.startswith("model."), name)):
            if recorded.get(name) != own.get(name) and not self.ignored.fullmatch(name):
                differences[name] = f"{name}: there {recorded.get(name)!r}, here {own.get(name)!r}"
        return differences


def read_record(path: Path) -> dict[str, Any]:
    """Return the content of a record.

    Raises:
        OSError: it does not exist or cannot be read.
        ValueError: it is damaged.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")
    return record


def add_to_record(folder: Path, facts: Mapping[str, Any], record_name: str = RECORD) -> None:
    """Add entries, which are not compared, to a folder's record; they replace entries of the same names."""
    write_json(folder / record_name, {**read_record(folder / record_name), **facts})


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted names; empty ones are values."""
    if not isinstance(value, Mapping) or not value:
        return {prefix.removesuffix("."): value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= flatten(inner, f"{prefix}{name}.")
    return flat
