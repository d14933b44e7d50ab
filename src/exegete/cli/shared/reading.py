"""Data as commands read it: what was read is said on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegete.cli.shared.console import say

if TYPE_CHECKING:
    from datasets import Dataset


def say_columns(data: str, named: dict[str, Any]) -> None:
    """One line on which columns of a table are read; nothing where its format leaves no choice."""
    from exegete.data.load import open_reader

    line = open_reader(data, **named).describe_columns()
    if line:
        say(line)


def examples(data: str, split: str | None, limit: int | None, seed: int, named: dict[str, Any]) -> Dataset:
    """The rows that a command explains, after a line on the columns and one on which rows these are."""
    import exegete
    from exegete.data.load import open_reader

    say_columns(data, named)
    found = exegete.load_data(data, split, limit=limit, seed=seed, **named)
    reader = open_reader(data, **named)
    drawn = "drawn from " if limit is not None and len(found) == limit else ""
    examples = "1 example" if len(found) == 1 else f"{len(found)} examples"
    line = f"{examples}: {drawn}{split or reader.default_split} of {source(data)}"
    say(line)
    if split is None and reader.default_split == "all":
        say("(`exegete train` divides such a file, and leaves out --split test)")
    return found


def say_division(data: str, named: dict[str, Any], rows: dict[str, int]) -> None:
    """Of a single file that no column divides, how many rows each split has that a training takes."""
    from exegete.data.load import open_reader

    if open_reader(data, **named).default_split == "all":
        taken = ", ".join(f"{count} of {split}" for split, count in rows.items())
        say(f"{source(data)} is divided by a hash of text and seed: {taken}")
        say("(to judge on other rows: --split test)")


def source(data: str) -> str:
    """The file's or folder's name, or the spec where it has none."""
    from exegete.data.load import open_reader

    return Path(open_reader(data).path).name or data.partition("?")[0]
