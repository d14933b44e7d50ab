"""Whether a name means a place on this machine rather than on a hub."""

from __future__ import annotations

import os
from pathlib import Path

from exegete.errors import ExegeteError


def looks_local(name: str) -> bool:
    """Whether a name can only be a path: it begins as one, has several slashes, or its folder is there."""
    parent, slash, _ = name.rpartition("/")
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or bool(slash and Path(parent).is_dir())


def require_local_model(name: str) -> None:
    """Raises ExegeteError for a path where there is no model."""
    if looks_local(name) and not Path(os.path.expanduser(name)).exists():
        raise ExegeteError(f"there is no model at {name}")
