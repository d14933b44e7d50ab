"""Folders on the Hugging Face hub: read like those that are here, written with a card that says what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegete.data.local import looks_local
from exegete.errors import ExegeteError, shorten

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

CARD = "README.md"
LEFT_OUT = ("checkpoint-*", ".*", "training_args.bin", CARD)


def find_folder(name: str | Path) -> Path:
    """The folder of that name, or the newest state of the repository `user/name` as the hub's cache keeps it.

    Raises:
        ExegeteError: no such repository, or no connection and nothing in the cache.
    """
    path = Path(name).expanduser()
    if isinstance(name, Path) or path.exists() or looks_local(name) or name.count("/") != 1:
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name))
    except (OSError, ValueError) as error:
        raise ExegeteError(f"there is no folder {name}, nor can such a repository be read: {shorten(error)}") from error


def make_operations(folder: Path, card: str) -> list[CommitOperationAdd]:
    """The files added to a repository: the folder's but checkpoints and hidden ones, and the card.

    Raises:
        ExegeteError: an empty folder, or none.
    """
    from huggingface_hub import CommitOperationAdd

    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_left_out(path.relative_to(folder))
    ]
    if not files:
        raise ExegeteError(f"there is nothing to push in {folder}")
    added = [CommitOperationAdd(str(path.relative_to(folder)), path) for path in files]
    return [CommitOperationAdd(CARD, card.encode()), *added]


def push(folder: Path, repo_id: str, card: str, *, private: bool = False, token: str | None = None) -> str:
    """Writes the folder and its card to a repository, in one commit; made if it is not there. Returns its address.

    Raises:
        ExegeteError: a name that is none, nothing to push, or what the hub answers.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    added = make_operations(folder, card)
    api = HfApi(token=token)
    try:
        made = api.create_repo(repo_id, private=private, exist_ok=True)
        api.create_commit(made.repo_id, added, commit_message="Upload by exegete")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ExegeteError(f"{repo_id} cannot be pushed: {shorten(error)}") from error
    return str(made)


def _is_left_out(path: Path) -> bool:
    return any(Path(part).match(pattern) for part in path.parts for pattern in LEFT_OUT)


def make_card(text: str, **facts: Any) -> str:
    """A card: the facts as its head, then the text."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**facts).to_yaml()}\n---\n\n{text}"
