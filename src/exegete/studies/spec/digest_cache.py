"""A cache of values computed from files, kept as long as these do not change: digests of data and models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from exegete import data
from exegete.data.atomic_files import atomic_file
from exegete.data.provenance import digest

READING = Path(data.__file__).parent
"""The code that reads data, on which digests depend too."""


def load_or_compute(facts: Any, paths: Iterable[Path], make: Callable[[], Any]) -> Any:
    """The JSON values that `make` gives, or gave for these facts when all files had the times and sizes that they have.

    Kept in `$XDG_CACHE_HOME/exegete`, where that can be written.
    """
    state = [_file_states(path) for path in (READING, *paths)]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exegete" / "digests"
    file = folder / f"{digest([facts, state, version('pyarrow')])}.json"
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    made = make()
    with suppress(OSError), atomic_file(file) as fresh:
        fresh.write_text(json.dumps(made), encoding="utf-8")
    return made


def _file_states(path: Path) -> list[tuple[str, int, int]]:
    """Name, time and size of a file, or of all in a folder."""
    files = sorted(file for file in path.rglob("*") if "__pycache__" not in file.parts) if path.is_dir() else [path]
    found = ((str(file.absolute()), file.stat()) for file in files if file.exists())
    return [(name, each.st_mtime_ns, each.st_size) for name, each in found]
