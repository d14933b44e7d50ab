"""A folder that belongs to one configuration: its record says which one, and whether all files are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expound.data.provenance import get_versions, to_json_value, write_json
from expound.errors import ExpoundError

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
        recorded, own = _flatten(recorded_config), _flatten(to_json_value(self.config))
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


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one with dotted names."""
    if not isinstance(value, Mapping) or not value:
        return {prefix.removesuffix("."): value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= _flatten(inner, f"{prefix}{name}.")
    return flat
