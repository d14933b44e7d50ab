"""The parts that all readers share: the contract, column types, and reading with errors that say where."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from exegete.data.cards import DataCard
from exegete.data.splits import normalise_split_name
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from datasets import Features

Row = dict[str, Any]
Names = Sequence[str]
Side = tuple[str, list[list[int]] | None]
"""A text and its rationale, None where nobody looked."""
Record = tuple[str, Row]
"""A row with its place, for errors."""
NUMBER: Final = "float32"
LabelType: TypeAlias = Names | Literal["float32"]

_SURROGATE = re.compile(r"(?i)\\ud[89a-f]")


class Table(NamedTuple):
    """One split: the columns' types, and the rows in canonical form."""

    features: Features
    rows: Iterable[Row]


@dataclass(frozen=True)
class RecordSource:
    """Records that are read anew whenever they are gone through, so that a file of any size takes no memory."""

    read: Callable[[], Iterator[Record]]

    def __iter__(self) -> Iterator[Record]:
        return self.read()


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one format without network. Its fields are the options of its spec.

    `path` is what stands between the colon and the question mark. `seed` decides what chance decides: how an undivided
    file is divided, which corpus is generated.
    """

    card: ClassVar[DataCard]
    needs_path: ClassVar[bool] = True
    path: str = ""
    seed: int = 0

    @property
    def default_split(self) -> str:
        """The split that is judged where none is named: dev, or the last where there is no dev."""
        splits = self.splits()
        return "dev" if "dev" in map(normalise_split_name, splits) else splits[-1]

    def describe_columns(self) -> str:
        """One line on which columns are read and which are not; empty where the format leaves no choice."""
        return ""

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The splits that are there."""

    @abstractmethod
    def table(self, split: str) -> Table:
        """One of `splits()`. Raises ExegeteError, naming the place, for what cannot be read."""

    def stream(self, split: str) -> Table:
        """The same; where the format allows it, without ever holding more than a row."""
        return self.table(split)


def make_text_features(label: LabelType | None, *, pair: bool = False, answer: bool = False) -> Features:
    """The canonical columns of a text or a pair; `label`: names of classes, NUMBER, or None for no label."""
    from datasets import ClassLabel, Features, List, Value

    spans = List(List(Value("int32")))
    columns = {
        "text": Value("string"),
        "text_pair": Value("string") if pair else None,
        "label": Value(NUMBER) if label == NUMBER else None if label is None else ClassLabel(names=list(label)),
        "answer": spans if answer else None,
        "rationale": spans,
        "rationale_pair": spans if pair else None,
    }
    return Features({name: kind for name, kind in columns.items() if kind is not None})


def make_row(*sides: Side) -> Row:
    """The columns of one text or of two, each with its rationale."""
    texts = {f"text{suffix}": text for suffix, (text, _) in zip(("", "_pair"), sides, strict=False)}
    return texts | {f"rationale{suffix}": spans for suffix, (_, spans) in zip(("", "_pair"), sides, strict=False)}


def require_folder(path: str) -> Path:
    """The folder of a spec. Raises ExegeteError when there is none."""
    if not Path(path).is_dir():
        raise ExegeteError(f"expected a folder at {path!r}, found {'a file' if Path(path).exists() else 'nothing'}")
    return Path(path)


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """The text of a file, UTF-8, line ends as they are. Raises ExegeteError when missing, empty or not UTF-8."""
    return decode_utf8(require_file(path).read_bytes(), str(path), encoding)


def require_file(path: Path) -> Path:
    """The path. Raises ExegeteError where no file is."""
    if not path.is_file():
        raise ExegeteError(f"expected a file at {str(path)!r}, found {'a folder' if path.exists() else 'nothing'}")
    return path


def read_lines(path: Path, newline: str) -> Iterator[str]:
    """The lines of a file with their ends, one at a time; `newline` as in `open`. Raises as `read_text` does."""
    blank = True
    try:
        with require_file(path).open(encoding="utf-8-sig", newline=newline) as text:
            for line in text:
                blank = blank and not line.strip()
                yield line
    except UnicodeDecodeError:
        read_text(path)  # names the line
    if blank:
        raise ExegeteError(f"{path} is empty")


def decode_utf8(data: bytes, where: str, encoding: str = "utf-8-sig") -> str:
    """Bytes as UTF-8, without a byte order mark. Raises ExegeteError when empty or not UTF-8, naming the line."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ExegeteError(f"{where}, line {line} is not UTF-8; convert the file to UTF-8") from None
    if not text.strip():
        raise ExegeteError(f"{where} is empty")
    return text


def split_lines(text: str, where: str) -> Iterator[tuple[str, str]]:
    """(place for errors, line) of the lines that are not blank. Only line feeds end lines, never U+0085 or U+2028."""
    yield from number_lines(text.split("\n"), where)


def number_lines(text: Iterable[str], where: str) -> Iterator[tuple[str, str]]:
    """(place for errors, line) of the lines that are not blank, without their ends."""
    for number, line in enumerate(text, start=1):
        if line.strip():
            yield f"{where}, line {number}", line.removesuffix("\n").removesuffix("\r")


def parse_tsv(text: str, where: str) -> Iterator[tuple[str, Row]]:
    """(place for errors, cells by the names in the first line) of a table. Raises ExegeteError for lengths."""
    rows = ((place, line.split("\t")) for place, line in split_lines(text, where))
    _, head = next(rows)
    for place, cells in rows:
        if len(cells) != len(head):
            raise ExegeteError(f"{place}: expected {len(head)} cells between tabs, got {len(cells)}")
        yield place, dict(zip(head, cells, strict=True))


def read_json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """(place for errors, object) of a jsonl file. Raises ExegeteError for a line that is no JSON object."""
    for where, line in number_lines(read_lines(path, "\n"), str(path)):
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise ExegeteError(f"{where}: expected a JSON object, got {type(row).__name__}")
        yield where, row


def parse_json(text: str, where: str) -> Any:
    """Parses a JSON text. Raises ExegeteError for invalid JSON, too deep nesting, and lone surrogates."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if "\n" in text else ""
        raise ExegeteError(f"{where}{line} is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ExegeteError(f"{where} is no JSON that can be read: {error}") from None
    return value


def get_field(row: Any, name: str, where: str) -> Any:
    """A field of a row. Raises ExegeteError naming the fields there are."""
    if not isinstance(row, dict):
        raise ExegeteError(f"{where}: expected an object with a field {name!r}, got {type(row).__name__}")
    if name not in row:
        raise ExegeteError(f"{where} has no field {name!r}; it has: {', '.join(map(str, row)) or 'none'}")
    return row[name]


def get_list(row: Any, name: str, where: str) -> list[Any]:
    """A field of a row that holds a list. Raises ExegeteError otherwise."""
    value = get_field(row, name, where)
    if not isinstance(value, list):
        raise ExegeteError(f"{where}: expected a list in {name!r}, got {type(value).__name__}")
    return value


def require_text(value: Any, name: str, where: str) -> str:
    """A text that is not blank. Raises ExegeteError otherwise."""
    if not isinstance(value, str):
        raise ExegeteError(f"{where}: expected text in {name!r}, got {type(value).__name__}")
    if not value.strip():
        raise ExegeteError(f"{where}: the text in {name!r} is empty; mend the row, or set skip_empty=true")
    return value


def require_number(value: Any, name: str, where: str) -> float:
    """A finite number, also as text. Raises ExegeteError otherwise."""
    with suppress(TypeError, ValueError, OverflowError):
        if math.isfinite(number := float(value)):
            return number
    raise ExegeteError(f"{where}: expected a number in {name!r}, got {value!r}")


def is_blank(value: Any) -> bool:
    """Whether a text is missing or only white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def require_label(value: Any, names: Names, where: str) -> int:
    """The index of a label's name. Raises ExegeteError naming the valid ones."""
    if value not in names:
        raise ExegeteError(f"{where}: expected a label of {', '.join(names)}, got {value!r}")
    return names.index(value)


def require_spans(value: Any, text: str, where: str) -> list[list[int]]:
    """A list of [start, end] inside the text. Raises ExegeteError otherwise."""
    if not isinstance(value, list | tuple) or not all(_is_span(span, len(text)) for span in value):
        raise ExegeteError(f"{where}: expected a list of [start, end] within {len(text)} characters, got {value!r}")
    return [[int(span[0]), int(span[1])] for span in value]


def require_answer(answer: Any, start: Any, text: str, where: str) -> list[int]:
    """The [start, end] of an answer. Raises ExegeteError unless it stands there in the text."""
    if not isinstance(answer, str) or type(start) is not int or start < 0 or not text.startswith(answer, start):
        raise ExegeteError(f"{where}: the answer {answer!r} does not stand at character {start} of its paragraph")
    return [start, start + len(answer)]


def _is_span(span: Any, length: int) -> bool:
    if not isinstance(span, list | tuple) or len(span) != 2:
        return False
    return all(isinstance(i, int) and not isinstance(i, bool) for i in span) and 0 <= span[0] < span[1] <= length
