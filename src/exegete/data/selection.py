"""Selection of examples of a dataset: short ones, those with a rationale, those that another dataset lacks."""

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
    """Return the examples whose texts (image, prompt) are not in any of the other datasets."""
    excluded: set[Hashable] = set()
    for other in others:
        excluded.update(_example_keys(other))
    return data.select([index for index, key in enumerate(_example_keys(data)) if key not in excluded])


def select_marked(data: Dataset) -> Dataset:
    """Return the examples that have a rationale which is not empty."""
    columns = [data[name][:] for name in RATIONALES if name in data.column_names]
    return data.select([index for index, row in enumerate(zip(*columns, strict=True)) if any(row)])


def select_short(data: Dataset, length: int, count: Callable[[list[str]], int]) -> Dataset:
    """Return the examples whose texts have at most this length by `count`; the texts of a pair are counted together."""
    columns = [data[name][:] for name in TEXTS if name in data.column_names]
    if not columns:
        raise ExegeteError("only texts have a length: the data has no column text")
    indices = []
    for index, row in enumerate(zip(*columns, strict=True)):
        texts = [text for text in row if text is not None]
        if count(texts) <= length:
            indices.append(index)
    return data.select(indices)


def count_characters(texts: list[str]) -> int:
    """Return the number of characters of the texts."""
    return sum(map(len, texts))


def count_words(texts: list[str]) -> int:
    """Return the number of words, separated by white space, of the texts."""
    return sum(len(text.split()) for text in texts)


def make_token_counter(source: str) -> Callable[[list[str]], int]:
    """Return a function that counts the tokens of an example's texts, special tokens included.

    Args:
        source: folder or hub name of the model whose tokenizer is used.

    Raises:
        ExegeteError: it has no fast tokenizer (`tokenizer.json`).
    """
    from tokenizers import Tokenizer

    file = Path(source) / "tokenizer.json"
    try:
        tokenizer: Any = Tokenizer.from_file(str(file)) if file.is_file() else Tokenizer.from_pretrained(source)
    except Exception as error:  # tokenizers raises plain exceptions
        raise ExegeteError(f"cannot count tokens: {source} has no tokenizer.json") from error
    # a tokenizer.json may truncate and pad, which would limit or raise the count
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: len(tokenizer.encode(*texts).ids)


def _example_keys(data: Dataset) -> list[Hashable]:
    """Return what identifies each example: its texts, its image, or the prompt and sources of generated text."""
    columns = [data[name][:] for name in TEXTS if name in data.column_names]
    if columns:
        return list(zip(*columns, strict=True))
    if "image" in data.column_names:
        return [(image.size, image.tobytes()) for image in data["image"]]
    return [exchange_key(row) for row in data]
