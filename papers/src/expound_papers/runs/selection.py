"""Selection of the examples of a dataset that are short, or have a rationale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expound.data.readers.exchanges import TEXTS
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Dataset

RATIONALES = ("rationale", "rationale_pair")


def select_marked(data: Dataset) -> Dataset:
    """Return the examples that have a rationale which is not empty."""
    return _select_where(data, map(any, _zip_columns(data, RATIONALES)))


def select_short(data: Dataset, length: int, count: Callable[[list[str]], int]) -> Dataset:
    """Return the examples whose texts have at most this length by `count`; the texts of a pair are counted together."""
    rows = _zip_columns(data, TEXTS)
    if data and not rows:
        raise ExpoundError("only texts have a length: the data has no column text")
    is_short = []
    for row in rows:
        texts = [text for text in row if text is not None]
        is_short.append(count(texts) <= length)
    return _select_where(data, is_short)


def _select_where(data: Dataset, flags: Iterable[bool]) -> Dataset:
    return data.select(np.flatnonzero(list(flags)))


def _zip_columns(data: Dataset, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of the named columns that the data has, row by row; empty if it lacks all of them."""
    return list(zip(*(data[name][:] for name in names if name in data.column_names), strict=True))


def count_characters(texts: list[str]) -> int:
    """Return the number of characters of the texts."""
    return sum(map(len, texts))


def count_words(texts: list[str]) -> int:
    """Return the number of words, separated by white space, of the texts."""
    return len(" ".join(texts).split())


def make_token_counter(source: str) -> Callable[[list[str]], int]:
    """Return a function that counts the tokens of an example's texts, special tokens included.

    Args:
        source: folder or hub name of the model whose tokenizer is used.

    Raises:
        ExpoundError: it has no fast tokenizer (`tokenizer.json`).
    """
    from tokenizers import Tokenizer

    file = Path(source) / "tokenizer.json"
    try:
        if file.is_file():
            tokenizer: Any = Tokenizer.from_file(str(file))
        else:
            tokenizer = Tokenizer.from_pretrained(source)
    except Exception as error:  # tokenizers raises plain exceptions
        raise ExpoundError(f"cannot count tokens: {source} has no tokenizer.json") from error
    # a tokenizer.json may truncate and pad, which would limit or raise the count
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: len(tokenizer.encode(*texts).ids)
