"""Local files, and names of models that are paths rather than names on the hub."""

from __future__ import annotations

import os
from pathlib import Path

from expound.errors import ExpoundError


def looks_local(name: str) -> bool:
    """Return whether a name can only be a path: it begins like one, has several slashes, or its parent exists."""
    parent, slash, _ = name.rpartition("/")
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or bool(slash and Path(parent).is_dir())


def require_local_model(name: str) -> None:
    """Raise ExpoundError if the name is a local path that does not exist; addresses of servers are no paths."""
    if "://" not in name and looks_local(name) and not Path(os.path.expanduser(name)).exists():
        raise ExpoundError(f"there is no model at {name}")


def read_text(path: Path, option: str = "") -> str:
    """Return the text of a file; `option` begins the error. Raises ExpoundError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExpoundError(f"{option}{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
