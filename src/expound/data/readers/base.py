"""The interface of readers, column types, and functions that read and check values with errors that name the place."""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from expound.data.cards import DataCard
from expound.data.splits import normalize_split_name
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features

Row = dict[str, Any]
Names = Sequence[str]
Side = tuple[str, list[list[int]] | None]
"""A text and its rationale; None if it was not annotated."""
Record = tuple[str, Row]
"""The place of a row, for errors, and the row."""
NUMBER: Final = "float32"
LabelType: TypeAlias = Names | Literal["float32"]
T = TypeVar("T")

_SURROGATE = re.compile(r"(?i)\\ud[89a-f]")


class Table(NamedTuple):
    """A split: the types of its columns and its rows in canonical form."""

    features: Features
    rows: Iterable[Row]


@dataclass(frozen=True)
class Rereadable(Generic[T]):
    """Records or rows that are read again in every iteration, so that a file of any size takes no memory.

    `names`: the columns that all of them have, if that is known without reading them.
    """

    read: Callable[[], Iterator[T]]
    names: Sequence[str] | None = None

    def __iter__(self) -> Iterator[T]:
        return self.read()


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one data format without network access. The fields are the options of a spec.

    Args:
        path: the part of the spec between colon and question mark.
        seed: random seed of divisions and of generated data.
    """

    card: ClassVar[DataCard]
    needs_path: ClassVar[bool] = True
    path: str = ""
    seed: int = 0

    @property
    def default_split(self) -> str:
        """The split that is used unless another is named: dev, or the last one of data without dev."""
        splits = self.splits()
        return "dev" if "dev" in map(normalize_split_name, splits) else splits[-1]

    def describe_columns(self) -> str:
        """Return a line that says which columns are read and which are not; empty if the format leaves no choice."""
        return ""

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Return the names of the available splits."""

    @abstractmethod
    def table(self, split: str) -> Table:
        """Return the rows of one of `splits()`. Raises ExpoundError, naming the place, for unreadable data."""

    def stream(self, split: str) -> Table:
        """Return the same as `table`, but read row by row if the format allows it."""
        return self.table(split)


def make_text_features(label: LabelType | None, *, pair: bool = False, answer: bool = False) -> Features:
    """Return the canonical column types of texts or pairs; `label`: names of classes, NUMBER, or None for no label."""
    from datasets import ClassLabel, Features, List, Value

    spans = List(List(Value("int32")))
    columns: dict[str, Any] = {"text": Value("string")}
    if pair:
        columns["text_pair"] = Value("string")
    if label is not None:
        columns["label"] = Value(NUMBER) if label == NUMBER else ClassLabel(names=list(label))
    if answer:
        columns["answer"] = spans
    columns["rationale"] = spans
    if pair:
        columns["rationale_pair"] = spans
    return Features(columns)


def make_row(*sides: Side) -> Row:
    """Return the columns of a text, or of the two texts of a pair, with their rationales."""
    row: Row = {}
    for suffix, (text, rationale) in zip(("", "_pair"), sides, strict=False):
        row[f"text{suffix}"], row[f"rationale{suffix}"] = text, rationale
    return row


def require_folder(path: str) -> Path:
    """Return the path of a folder. Raises ExpoundError if it does not exist."""
    if not Path(path).is_dir():
        found = "a file" if Path(path).exists() else "nothing"
        raise ExpoundError(f"expected a folder at {path!r}, found {found}")
    return Path(path)


def is_inside(path: Path | str, folder: Path | str) -> bool:
    """Return whether a path leads into a folder; symbolic links are not followed."""
    # os.path.abspath rather than Path.resolve, so that links inside of the folder are allowed
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """Return the text of a UTF-8 file, line ends unchanged. Raises ExpoundError if missing, empty or not UTF-8."""
    return decode_utf8(require_file(path).read_bytes(), str(path), encoding)


def require_file(path: Path) -> Path:
    """Return the path of a file. Raises ExpoundError if the file does not exist."""
    if not path.is_file():
        found = "a folder" if path.exists() else "nothing"
        raise ExpoundError(f"expected a file at {str(path)!r}, found {found}")
    return path


def read_lines(path: Path, newline: str) -> Iterator[str]:
    """Yield the lines of a file with their line ends; `newline` as in `open`. Raises like `read_text`."""
    blank = True
    try:
        with require_file(path).open(encoding="utf-8-sig", newline=newline) as text:
            for line in text:
                blank = blank and not line.strip()
                yield line
    except UnicodeDecodeError:
        # the decoder of `open` does not know the line; reading the whole file again does
        read_text(path)
    if blank:
        raise ExpoundError(f"{path} is empty")


def decode_utf8(data: bytes, where: str, encoding: str = "utf-8-sig") -> str:
    """Decode UTF-8, without a byte order mark. Raises ExpoundError if empty or not UTF-8, naming the line."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ExpoundError(f"{where}, line {line} is not UTF-8; convert the file to UTF-8") from None
    if not text.strip():
        raise ExpoundError(f"{where} is empty")
    return text


def split_lines(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield (place for errors, line) of the lines that are not blank."""
    # str.splitlines would also split at U+0085 and U+2028, which occur within texts
    yield from number_lines(text.split("\n"), where)


def number_lines(text: Iterable[str], where: str) -> Iterator[tuple[str, str]]:
    """Yield (place for errors, line) of the lines that are not blank, without their line ends."""
    for number, line in enumerate(text, start=1):
        if line.strip():
            yield f"{where}, line {number}", line.removesuffix("\n").removesuffix("\r")


def parse_tsv(text: str, where: str) -> Iterator[tuple[str, Row]]:
    """Yield (place for errors, cells by column name) of a tab-separated table whose first line has the column names.

    Raises ExpoundError for a row with another number of cells.
    """
    rows = ((place, line.split("\t")) for place, line in split_lines(text, where))
    _, head = next(rows)
    for place, cells in rows:
        if len(cells) != len(head):
            raise ExpoundError(f"{place}: expected {len(head)} cells between tabs, got {len(cells)}")
        yield place, dict(zip(head, cells, strict=True))


def read_json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield (place for errors, object) of a jsonl file. Raises ExpoundError for a line that is no JSON object."""
    for where, line in number_lines(read_lines(path, "\n"), str(path)):
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise ExpoundError(f"{where}: expected a JSON object, got {type(row).__name__}")
        yield where, row


def parse_json(text: str, where: str) -> Any:
    """Parse JSON. Raises ExpoundError for invalid JSON, too deep nesting, and lone surrogates."""
    try:
        value = json.loads(text)
        # json accepts half of a surrogate pair, which no later step could write as UTF-8
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if "\n" in text else ""
        raise ExpoundError(f"{where}{line} is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ExpoundError(f"{where} is no JSON that can be read: {error}") from None
    return value


def get_field(row: Any, name: str, where: str) -> Any:
    """Return a field of a row. Raises ExpoundError, naming the available fields, if it is missing."""
    if not isinstance(row, dict):
        raise ExpoundError(f"{where}: expected an object with a field {name!r}, got {type(row).__name__}")
    if name not in row:
        raise ExpoundError(f"{where} has no field {name!r}; it has: {', '.join(map(str, row)) or 'none'}")
    return row[name]


def get_list(row: Any, name: str, where: str) -> list[Any]:
    """Return a field of a row that holds a list. Raises ExpoundError otherwise."""
    value = get_field(row, name, where)
    if not isinstance(value, list):
        raise ExpoundError(f"{where}: expected a list in {name!r}, got {type(value).__name__}")
    return value


def require_text(value: Any, name: str, where: str) -> str:
    """Return the value if it is a text that is not blank. Raises ExpoundError otherwise."""
    if not isinstance(value, str):
        raise ExpoundError(f"{where}: expected text in {name!r}, got {type(value).__name__}")
    if not value.strip():
        raise ExpoundError(f"{where}: the text in {name!r} is empty; mend the row, or leave it out by ?skip_empty=true")
    return value


def require_number(value: Any, name: str, where: str) -> float:
    """Return a finite number, which may be given as text. Raises ExpoundError otherwise."""
    with suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        if math.isfinite(number):
            return number
    raise ExpoundError(f"{where}: expected a number in {name!r}, got {value!r}")


def is_blank(value: Any) -> bool:
    """Return whether a text is missing or only white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def require_label(value: Any, names: Names, where: str) -> int:
    """Return the index of a label's name. Raises ExpoundError, naming the valid labels, for an unknown one."""
    if value not in names:
        raise ExpoundError(f"{where}: expected a label of {', '.join(names)}, got {value!r}")
    return names.index(value)


def require_answer(answer: Any, start: Any, text: str, where: str) -> list[int]:
    """Return the [start, end] of an answer. Raises ExpoundError if the text has something else at this place."""
    if not isinstance(answer, str) or type(start) is not int or start < 0 or not text.startswith(answer, start):
        raise ExpoundError(f"{where}: the answer {answer!r} is not at character {start} of its paragraph")
    return [start, start + len(answer)]
