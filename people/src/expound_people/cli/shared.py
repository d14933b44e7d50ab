"""What the commands of `expound people` share: the database of studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from expound_people.storage import Storage

StorageUrl = Annotated[
    str | None,
    typer.Option(
        "--storage", help="Database of studies: sqlite:///FILE or postgresql://… Default: expound-studies.db."
    ),
]


def open_storage(url: str | None) -> Storage:
    """Open the database at a URL; default: a file in the working directory."""
    from expound_people.storage import DEFAULT_URL, Storage

    return Storage(url or DEFAULT_URL)
