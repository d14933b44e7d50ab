"""Loading of data for commands, with messages about what was read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from expound.cli.shared.console import say

if TYPE_CHECKING:
    from datasets import Dataset


def say_columns(data: str, named: dict[str, Any]) -> None:
    """Print which columns of a table are read, unless the format has fixed columns."""
    from expound.data.load import open_reader

    line = open_reader(data, **named).describe_columns()
    if line:
        say(line)


def load_examples(data: str, split: str | None, limit: int | None, seed: int, named: dict[str, Any]) -> Dataset:
    """Return the examples to explain; print which columns and which rows are used."""
    import expound
    from expound.data.load import open_reader

    say_columns(data, named)
    examples = expound.load_data(data, split, limit=limit, seed=seed, **named)
    reader = open_reader(data, **named)
    count = "1 example" if len(examples) == 1 else f"{len(examples)} examples"
    sampled = "sampled from " if len(examples) == limit else ""
    say(f"{count}: {sampled}{split or reader.default_split} of {get_data_name(data)}")
    if split is None and reader.default_split == "all":
        say("(`expound train` divides such a file; its models have not seen --split test)")
    return examples


def say_split_sizes(data: str, named: dict[str, Any], rows: dict[str, int]) -> None:
    """Print the sizes of the splits if a single file without a split column is divided for training."""
    from expound.data.load import open_reader

    if open_reader(data, **named).default_split == "all":
        sizes = ", ".join(f"{split} {count}" for split, count in rows.items())
        say(f"{get_data_name(data)} is divided by a hash of text and seed: {sizes} rows")
        say("(judge the model on the remaining rows with --split test)")


def judging_options(data: str, dev_split: str, named: dict[str, Any]) -> list[str]:
    """Return the options of `compare` for data that a model was trained on; of a divided file, the test rows."""
    from expound.data.load import open_reader

    split = "test" if open_reader(data, **named).default_split == "all" else dev_split
    columns = [word for name, column in named.items() for word in (f"--{name.replace('_', '-')}", column)]
    return ["--data", data, "--split", split, *columns]


def get_data_name(data: str) -> str:
    """Return the name of the file or folder, or the spec if it has no path."""
    from expound.data.load import open_reader

    return Path(open_reader(data).path).name or data.partition("?")[0]
