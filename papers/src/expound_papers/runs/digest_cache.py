"""A cache on disk of values computed from files, valid as long as the files do not change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from expound import data
from expound.data.atomic_files import atomic_file
from expound.data.provenance import digest

READING = Path(data.__file__).parent
"""The package that reads data: digests of rows depend on its code as well."""


def load_or_compute(facts: Any, paths: Iterable[Path], compute: Callable[[], Any]) -> Any:
    """Return the JSON value of `compute`, or the cached one for these facts if no file has changed since.

    The cache is in `$XDG_CACHE_HOME/expound/digests`; without permission to write there, values are computed.

    Args:
        facts: JSON values that the result depends on.
        paths: files and folders that it depends on, by their times and sizes.
        compute: computes the value, which takes long for a large corpus or model.
    """
    state = [_file_states(path) for path in (READING, *paths)]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "expound" / "digests"
    # Digests of rows are digests of Arrow's stream format, which may change between versions.
    file = folder / f"{digest([facts, state, version('pyarrow')])}.json"
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    value = compute()
    with suppress(OSError), atomic_file(file) as temporary:
        temporary.write_text(json.dumps(value), encoding="utf-8")
    return value


def _file_states(path: Path) -> list[tuple[str, int, int]]:
    """Return the name, time and size of a file, or of each file in a folder."""
    files = [path]
    if path.is_dir():
        # Python writes compiled files at any time.
        files = sorted(path.rglob("*"))
    states = []
    for file in files:
        if file.exists() and "__pycache__" not in file.parts:
            status = file.stat()
            states.append((str(file.absolute()), status.st_mtime_ns, status.st_size))
    return states
