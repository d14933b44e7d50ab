"""Models on the Hugging Face hub and in local folders: found, downloaded, and uploaded with a card."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from expound.errors import ExpoundError, shorten

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

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
    name = read_json_object(folder / CONFIG).get("explainer")
    return name if isinstance(name, str) else None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_text(path: Path, option: str = "") -> str:
    """Return the text of a file; `option` begins the error. Raises ExpoundError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExpoundError(f"{option}{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


Params = ParamSpec("Params")
Result = TypeVar("Result")
SECONDS = 5
CARD = "README.md"
LEFT_OUT = ("checkpoint-*", ".*", "training_args.bin", CARD)


def find_folder(name: str | Path) -> Path:
    """Return the local folder of this name, or the cached copy of the newest state of the repository `user/name`.

    Raises:
        ExpoundError: no such repository, or no connection and no cached copy.
    """
    # a name with one slash may be both; an existing folder wins over a repository
    path = Path(name).expanduser()
    if isinstance(name, Path) or path.exists() or looks_local(name) or name.count("/") != 1:
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name))
    except (OSError, ValueError) as error:
        raise ExpoundError(f"found no folder {name}, and the repository cannot be read: {shorten(error)}") from error


def cache_if_unreachable(load: Callable[Params, Result]) -> Callable[Params, Result]:
    """Make a function that loads the model of its first argument use the cache alone if the hub cannot be reached.

    Hugging Face's libraries make six attempts for each file, which takes minutes.

    Raises:
        ExpoundError: by the function, for a name that is neither a folder nor in the cache.
    """

    @wraps(load)
    def load_once(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        name = args[0] if args else next(iter(kwargs.values()), None)
        is_name = isinstance(name, str) and "://" not in name and not looks_local(name)
        if not is_name or Path(str(name)).exists() or _is_reachable():
            return load(*args, **kwargs)
        from huggingface_hub import constants

        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            return load(*args, **kwargs)
        except ExpoundError as error:
            if "connect" not in str(error):
                raise
            raise ExpoundError(
                f"there is no folder {name}; the hub ({constants.ENDPOINT}) cannot be reached, and its cache has none"
            ) from error
        finally:
            constants.HF_HUB_OFFLINE = before

    return load_once


def _is_reachable() -> bool:
    """Return whether the hub answers within seconds; True also in offline mode, without a request."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    # Each HTTP library that the hub's client has used so far has errors of its own.
    except Exception:
        return False
    return True


def make_operations(folder: Path, card: str) -> list[CommitOperationAdd]:
    """Return the operations that add a folder's files, except checkpoints and hidden files, and the card.

    Raises:
        ExpoundError: the folder is empty or does not exist.
    """
    from huggingface_hub import CommitOperationAdd

    added = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        # a pattern may match the file or any folder that it is in
        is_left_out = any(Path(part).match(pattern) for part, pattern in product(name.parts, LEFT_OUT))
        if path.is_file() and not is_left_out:
            added.append(CommitOperationAdd(str(name), path))
    if not added:
        raise ExpoundError(f"{folder} has no files to push")
    return [CommitOperationAdd(CARD, card.encode()), *added]


def push(folder: Path, repo_id: str, card: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a folder and its card to a repository, in one commit, and return the repository's address.

    The repository is created if it does not exist.

    Raises:
        ExpoundError: an invalid name, an empty folder, or an error of the hub.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    added = make_operations(folder, card)
    api = HfApi(token=token)
    try:
        repository = api.create_repo(repo_id, private=private, exist_ok=True)
        api.create_commit(repository.repo_id, added, commit_message="Upload by expound")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ExpoundError(f"{repo_id} cannot be pushed: {shorten(error)}") from error
    return str(repository)


def make_card(text: str, **facts: Any) -> str:
    """Return the text of a card: its metadata as a YAML header, then the text."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**facts).to_yaml()}\n---\n\n{text}"
