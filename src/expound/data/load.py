"""Loading of datasets in canonical form from a spec, such as `mlqe:FOLDER?pair=ro-en`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from expound.data.readers.base import Rereadable
from expound.data.readers.registry import READERS
from expound.data.registry import parse_params, parse_spec
from expound.data.splits import find_split
from expound.errors import ExpoundError, shorten, unknown

if TYPE_CHECKING:
    from datasets import Dataset, Features

    from expound.data.readers.base import Reader, Row

SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
"""Names that datasets accept for a split."""


def load_data(
    spec: str, split: str | None = "train", *, limit: int | None = None, seed: int | None = None, **options: Any
) -> Dataset:
    """Load a split of a dataset, with the same columns for every format.

    Texts have `text`, `label` and `rationale` (`text_pair` and `rationale_pair` for pairs); rows of language models
    have `prompt` or `messages`, `response` and `sources`. The examples are in memory. Nothing is cached, so a changed
    file gives new data. `info.description` is the spec with every option that differs from its default.

    Args:
        spec: NAME:PATH?OPTION=VALUE&..., where NAME is a key of READERS. A path alone is enough if its suffix is such a
            key, as .csv or .jsonl.
        split: train, dev (also validation, val, valid) or test; single files also have all. Default: dev, or all of a
            single file without a split column.
        limit: use at most this many examples, sampled with the seed and in the order of the file. A smaller sample is
            part of a larger one.
        seed: random seed of the sample, of the division of single files and of the generated corpus; overrides the
            seed of the spec.
        options: options of the reader, which override the spec's.

    Raises:
        ExpoundError: an unknown name, option or split, no examples, or missing, unreadable or malformed files. The
            message names the place and has one line of at most 300 characters.
    """
    with _report_in_one_line(spec):
        return _load(spec, split, limit, seed, options)


class Stream:
    """A split of a dataset that is read example by example, anew in every iteration; see `load_data`.

    Tables and datasets of the hub are never held in memory; published layouts are read file by file.

    Attributes:
        spec: the spec with every option that differs from its default.
        split: the name of the split.
        features: the types of the columns.
    """

    def __init__(self, spec: str, split: str | None = None, **options: Any) -> None:
        with _report_in_one_line(spec):
            self._reader = open_reader(spec, **options)
            self.spec = format_spec(self._reader)
            self.split = find_split(split or self._reader.default_split, self._reader.splits())
            self.features = self._reader.stream(self.split).features

    def __iter__(self) -> Iterator[Row]:
        with _report_in_one_line(self.spec):
            yield from self._reader.stream(self.split).rows

    def decode(self, row: Row) -> Row:
        """Return the row with its images decoded."""
        decoded: Row = self.features.decode_example(row)
        return decoded


@contextmanager
def _report_in_one_line(spec: str) -> Iterator[None]:
    """Shorten the message of an error in the block to one line."""
    try:
        yield
    except ExpoundError as error:
        raise ExpoundError(shorten(error)) from error
    except OSError as error:
        raise ExpoundError(shorten(f"{spec[:200]!r} cannot be read: {error.strerror or error}")) from error


def _load(spec: str, split: str | None, limit: int | None, seed: int | None, options: dict[str, Any]) -> Dataset:
    if limit is not None and limit < 1:
        raise ExpoundError(f"expected a limit of at least 1 example, got {limit}")
    if seed is not None:
        options = options | {"seed": seed}
    reader = open_reader(spec, **options)
    if reader.seed < 0:
        raise ExpoundError(f"expected a seed of at least 0, got {reader.seed}")
    split = split or reader.default_split
    name = find_split(split, reader.splits())
    if not SPLIT_NAME.fullmatch(name):
        raise ExpoundError(f"{spec}: names of splits are words with dots between them, got {name!r:.60}")
    features, rows = reader.table(name)
    # Rows of which a sample is taken are read twice, if they can be, instead of being kept.
    if limit is None or not isinstance(rows, Rereadable):
        rows = list(rows)
    count = sum(1 for _ in rows)
    if not count:
        others = [name for name in reader.splits() if any(reader.table(name).rows)]
        raise ExpoundError(f"{spec} has no rows in its split {split}; splits with rows: {', '.join(others) or 'none'}")
    if limit is not None and limit < count:
        # the first of one permutation, so that a smaller sample is part of a larger one
        sample = set(np.random.default_rng(reader.seed).permutation(count)[:limit].tolist())
        rows = [row for number, row in enumerate(rows) if number in sample]
    return make_dataset(list(rows), features, format_spec(reader), split)


def open_reader(spec: str, **options: Any) -> Reader:
    """Return the reader of a spec with its options set. Raises ExpoundError for an unknown name or option."""
    address, params = parse_spec(spec)
    name, path = _split_address(address)
    reader = READERS[name]
    if reader.needs_path and not path:
        raise ExpoundError(f"expected a path in the spec {spec!r}: {reader.card.form}")
    if path and not reader.needs_path:
        raise ExpoundError(f"expected no path in the spec {spec!r}: {reader.card.form}")
    # as text, so that values of options and of the spec are converted and checked in the same way
    params |= {option: str(value) for option, value in options.items()}
    return reader(path=path, **parse_params(name, reader, params, fixed=("path",)))


def format_spec(reader: Reader) -> str:
    """Return the spec of a reader, with every option that differs from its default."""
    changed = {}
    for field in fields(reader):
        value = getattr(reader, field.name)
        if field.name != "path" and value != field.default:
            changed[field.name] = value
    spec = reader.card.name
    if reader.path:
        spec += f":{reader.path}"
    if changed:
        spec += f"?{urlencode(changed)}"
    return spec


def _split_address(address: str) -> tuple[str, str]:
    name, _, path = address.partition(":")
    if name in READERS:
        return name, path
    suffix = Path(address).suffix.removeprefix(".").lower()
    if suffix in READERS:
        return suffix, address
    if Path(address).exists():
        raise ExpoundError(f"{address} exists, but its format is unknown: put the format in front, as sst:{address}")
    if "/" in address or address.startswith("."):
        raise ExpoundError(f"there is no file or folder at {path or address}")
    raise unknown("kind of data", name, READERS)


def make_dataset(rows: list[dict[str, Any]], features: Features, spec: str, split: str | None = None) -> Dataset:
    """Return rows as a dataset with these column types; the spec that they were read from becomes its description."""
    from datasets import Dataset, DatasetInfo, NamedSplit

    columns = {}
    for name in features:
        columns[name] = [row[name] for row in rows]
    info = DatasetInfo(description=spec, features=features)
    return Dataset.from_dict(columns, features=features, info=info, split=split and NamedSplit(split))
