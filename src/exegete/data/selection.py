"""Which rows of a dataset take part: short ones, marked ones, and none that something else uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegete.data.readers.exchanges import exchange_key
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from datasets import Dataset

TEXTS = ("text", "text_pair")
RATIONALES = ("rationale", "rationale_pair")


def exclude_examples(data: Dataset, *others: Dataset) -> Dataset:
    """The rows whose texts (image, prompt) stand in none of the others."""
    there = {row for other in others for row in _example_keys(other)}
    return data.select([index for index, row in enumerate(_example_keys(data)) if row not in there])


def select_marked(data: Dataset) -> Dataset:
    """The rows of which somebody marked some evidence."""
    columns = [data[name][:] for name in RATIONALES if name in data.column_names]
    return data.select([index for index, row in enumerate(zip(*columns, strict=True)) if any(row)])


def select_short(data: Dataset, length: int, count: Callable[[list[str]], int]) -> Dataset:
    """The rows whose texts have a length of at most so much, both texts of a pair together."""
    columns = [data[name][:] for name in TEXTS if name in data.column_names]
    if not columns:
        raise ExegeteError("only texts have a length to choose rows by")
    texts = ([text for text in row if text is not None] for row in zip(*columns, strict=True))
    return data.select([index for index, row in enumerate(texts) if count(row) <= length])


def count_characters(texts: list[str]) -> int:
    """The characters of a row's texts."""
    return sum(map(len, texts))


def count_words(texts: list[str]) -> int:
    """The words of a row's texts, separated by white space."""
    return sum(len(text.split()) for text in texts)


def make_token_counter(source: str) -> Callable[[list[str]], int]:
    """A function that counts the tokens of a row's texts, special ones included, as a model's tokenizer cuts them.

    Args:
        source: a model's folder, or its name on the hub.

    Raises:
        ExegeteError: there is no fast tokenizer (`tokenizer.json`) there.
    """
    from tokenizers import Tokenizer  # not needed to read data

    file = Path(source) / "tokenizer.json"
    try:
        tokenizer: Any = Tokenizer.from_file(str(file)) if file.is_file() else Tokenizer.from_pretrained(source)
    except Exception as error:  # the library raises no type of its own
        raise ExegeteError(f"there is no tokenizer.json at {source} to count tokens by") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: len(tokenizer.encode(*texts).ids)


def _example_keys(data: Dataset) -> list[Hashable]:
    """The identity of a row: its texts, the picture, or of generated text all that is asked."""
    columns = [data[name][:] for name in TEXTS if name in data.column_names]
    if columns:
        return list(zip(*columns, strict=True))
    if "image" in data.column_names:
        return [(image.size, image.tobytes()) for image in data["image"]]
    return [exchange_key(row) for row in data]
