"""`load_data`: from a spec, such as `mlqe:FOLDER?pair=ro-en`, to a dataset in canonical form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from exegete.data.readers.registry import READERS
from exegete.data.specs import parse_params
from exegete.data.specs import parse_spec as split_spec
from exegete.data.splits import find_split
from exegete.errors import ExegeteError, shorten, unknown

if TYPE_CHECKING:
    from datasets import Dataset, Features

    from exegete.data.readers.base import Reader, Row


def load_data(
    spec: str, split: str | None = "train", *, limit: int | None = None, seed: int | None = None, **options: Any
) -> Dataset:
    """Reads a split of a dataset in canonical form (docs/architecture.md lists the columns).

    The rows are in memory: nothing is cached, and a changed file gives new data. `info.description` is the spec with
    all that is not at its default.

    Args:
        spec: NAME:PATH?OPTION=VALUE&..., a key of READERS first; a path alone where it ends in one, as .csv or .jsonl.
        split: train, dev (also validation, val, valid), test; single files also have all. None: dev, or all of a single
            file that no column divides.
        limit: at most so many rows, drawn by the seed, in the order of the file; a smaller draw is part of a larger.
        seed: what chance decides (division of single files, the generated corpus, the draw); wins over the spec's.
        options: as behind the question mark of the spec; these win.

    Raises:
        ExegeteError: unknown name, option or split; no rows; what is missing, unreadable, or malformed, and where: in
            one line of at most 300 characters.
    """
    with _report_in_one_line(spec):
        return _load(spec, split, limit, seed, options)


class Stream:
    """A split of a dataset a row at a time, read anew whenever it is gone through; see `load_data`.

    `features` are the columns' types, `spec` is the spec with all that is not at its default, `split` its split. Tables
    and datasets of the hub take no memory; published layouts are read a file at a time.
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
        """The row with its pictures opened."""
        decoded: Row = self.features.decode_example(row)
        return decoded


@contextmanager
def _report_in_one_line(spec: str) -> Iterator[None]:
    """Turns what goes wrong in reading into one line."""
    try:
        yield
    except ExegeteError as error:
        raise ExegeteError(shorten(error)) from error
    except OSError as error:
        raise ExegeteError(shorten(f"{spec[:200]!r} cannot be read: {error.strerror or error}")) from error


def _load(spec: str, split: str | None, limit: int | None, seed: int | None, options: dict[str, Any]) -> Dataset:
    if limit is not None and limit < 1:
        raise ExegeteError(f"expected a limit of at least 1 row, got {limit}")
    reader = open_reader(spec, **options, **({} if seed is None else {"seed": seed}))
    if reader.seed < 0:
        raise ExegeteError(f"expected a seed of at least 0, got {reader.seed}")
    split = split or reader.default_split
    features, rows = reader.table(find_split(split, reader.splits()))
    data = list(rows)
    if not data:
        there = [name for name in reader.splits() if any(True for _ in reader.table(name).rows)]
        raise ExegeteError(f"{spec} has no rows in its split {split}; there are some in: {', '.join(there) or 'none'}")
    if limit is not None and limit < len(data):
        drawn = np.random.default_rng(reader.seed).permutation(len(data))[:limit]
        data = [data[i] for i in sorted(drawn)]
    return _make_dataset(data, features, format_spec(reader))


def open_reader(spec: str, **options: Any) -> Reader:
    """The reader of a spec with its options set. Raises ExegeteError for a name or an option that there isn't."""
    address, given = split_spec(spec)
    name, path = _split_address(address)
    kind = READERS[name]
    if kind.needs_path and not path:
        raise ExegeteError(f"expected a path in the spec {spec!r}: {kind.card.form}")
    if path and not kind.needs_path:
        raise ExegeteError(f"expected no path in the spec {spec!r}: {kind.card.form}")
    given |= {option: str(value) for option, value in options.items()}
    return kind(path=path, **parse_params(name, kind, given, fixed=("path",)))


def format_spec(reader: Reader) -> str:
    """The spec that gives this reader again."""
    changed = {
        field.name: getattr(reader, field.name)
        for field in fields(reader)
        if field.name != "path" and getattr(reader, field.name) != field.default
    }
    address = f"{reader.card.name}:{reader.path}" if reader.path else reader.card.name
    return f"{address}?{urlencode(changed)}" if changed else address


def _split_address(address: str) -> tuple[str, str]:
    name, _, path = address.partition(":")
    if name in READERS:
        return name, path
    suffix = Path(address).suffix.removeprefix(".").lower()
    if suffix in READERS:
        return suffix, address
    if Path(address).exists():
        raise ExegeteError(f"{address} is there, but not in which form: put that in front, as sst:{address}")
    if "/" in address or address.startswith("."):
        raise ExegeteError(f"there is no file or folder at {path or address}")
    raise unknown("kind of data", name, READERS)


def _make_dataset(rows: list[dict[str, Any]], features: Features, spec: str) -> Dataset:
    from datasets import Dataset, DatasetInfo

    columns = {name: [row[name] for row in rows] for name in features}
    return Dataset.from_dict(columns, features=features, info=DatasetInfo(description=spec, features=features))
