"""Local files, and names of models that are paths rather than names on the hub."""

from __future__ import annotations

import json
import os
from pathlib import Path

from expound.errors import ExpoundError

CONFIG = "config.json"
PICKLES = (".pkl", ".pickle", ".joblib")


def looks_local(name: str) -> bool:
    """Return whether a name can only be a path: it begins like one, has several slashes, or its parent exists."""
    parent, slash, _ = name.rpartition("/")
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or bool(slash and Path(parent).is_dir())


def require_local_model(name: str) -> None:
    """Raise ExpoundError if the name is a local path without a model; addresses of servers are no paths."""
    if "://" in name:
        return
    folder = Path(os.path.expanduser(name))
    if looks_local(name) and not folder.exists():
        raise ExpoundError(f"there is no model at {name}")
    if folder.suffix in PICKLES and folder.is_file():
        raise ExpoundError(
            f"{name} is a pickle, which can run any code when it is opened, and is not read: load it in a module of "
            "your own, and give --model MODULE:FUNCTION, or in Python the function that predicts"
        )
    explainer = read_explainer_name(folder)
    if explainer:
        raise ExpoundError(
            f"{name} holds an explainer, not a model: give the model that it explains, and "
            f'--methods {explainer}:{name} (method="{explainer}:{name}")'
        )
    if not folder.is_dir() or (folder / CONFIG).exists():
        return
    if (folder / "results.parquet").exists():
        raise ExpoundError(f"{name} holds a comparison, not a model: open {name}/report.html")
    if (folder / "expound_run.json").exists():
        raise ExpoundError(
            f"{name} holds no finished model: the training was interrupted. The same command (expound train … "
            f"--output-dir {name}) resumes it"
        )


def read_explainer_name(folder: Path) -> str | None:
    """Return the id of the explainer that is saved in a folder, or None."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    name = config.get("explainer") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def read_text(path: Path, option: str = "") -> str:
    """Return the text of a file; `option` begins the error. Raises ExpoundError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExpoundError(f"{option}{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
