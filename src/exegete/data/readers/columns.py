"""Any table to canonical rows: which column is the text, which the label, and what kind of label it is."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from exegete.data.readers.base import (
    NUMBER,
    LabelType,
    Record,
    Row,
    Table,
    get_field,
    get_list,
    is_blank,
    make_text_features,
    require_answer,
    require_spans,
    require_text,
)
from exegete.errors import ExegeteError, unknown

Records = Iterable[Record]
"""Rows with their places, which can be gone through several times."""

PAIRS = (
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "context"),
    ("question", "sentence"),
)
TEXTS = ("text", "sentence", "review", "content")
LABELS = ("label", "labels", "sentiment")
USUAL = {name for names in (*PAIRS, TEXTS) for name in names}
"""Names of columns that hold text."""
TASKS = ("classification", "regression")


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Which columns to read; an empty name means: the one with a usual name, if there is any.

    `rationale_column`, `rationale_pair_column` and `answer_column` hold lists of [start, end] in characters (in a csv
    file as JSON); an answer may also be SQuAD's {"text": [...], "answer_start": [...]}. `task` is classification or
    regression; by default labels that are numbers with a fraction make a regression, also 1.0 where it is text (in a
    csv file); the number 1.0 is the class 1. `skip_empty` leaves out rows with an empty text; by default they are an
    error.
    """

    text_column: str = ""
    text_pair_column: str = ""
    label_column: str = ""
    rationale_column: str = ""
    rationale_pair_column: str = ""
    answer_column: str = ""
    task: str = ""
    skip_empty: bool = False

    def __post_init__(self) -> None:
        if self.task and self.task not in TASKS:
            raise unknown("task", self.task, TASKS)


class Columns(NamedTuple):
    """The resolved columns; None where a table has none."""

    text: str
    text_pair: str | None
    label: str | None
    rationale: str | None
    rationale_pair: str | None
    answer: str | None


def resolve_columns(options: ColumnOptions, records: Records, where: str) -> Columns:
    """The columns to read, of all that any row has.

    Raises:
        ExegeteError: a named one or any text is missing; the message names those there are.
    """
    return _find_columns(options, list(dict.fromkeys(name for _, row in records for name in row)), where)


def describe_columns(options: ColumnOptions, names: list[str], where: str, used: Collection[str] = ()) -> str:
    """One line on which of a table's columns are read and which are not, `used` being read for something else.

    As "columns: text ← review; no label, no rationale (unused: stars; give --label-column, --rationale-column)". Empty
    for a table without a text or a named column: reading it says so.
    """
    try:
        found = _find_columns(options, names, where)
    except ExegeteError:
        return ""
    read = [name if name == column else f"{name} ← {column}" for name, column in found._asdict().items() if column]
    missing = [name for name in ("label", "rationale") if not getattr(found, name) and not found.answer]
    unused = [name for name in names if name not in (*found, *used)]
    line = f"columns: {', '.join(read)}" + (f"; no {', no '.join(missing)}" if missing else "")
    if not unused:
        return line
    give = f"; give {', '.join(f'--{name}-column' for name in missing)}" if missing else ""
    return f"{line} (unused: {', '.join(unused)}{give})"


def _find_columns(options: ColumnOptions, names: list[str], where: str) -> Columns:
    wanted = {key: value for key, value in vars(options).items() if key.endswith("_column") and value}
    for option, name in wanted.items():
        if name not in names:
            raise ExegeteError(f"{where} has no column {name!r} ({option}); it has: {', '.join(names)}")
    text, pair = _find_text_columns(options, names, where)

    def usual(option: str, *candidates: str) -> str | None:
        return wanted.get(option) or next((name for name in candidates if name in names), None)

    return Columns(
        text,
        pair,
        usual("label_column", *LABELS),
        usual("rationale_column", "rationale"),
        usual("rationale_pair_column", "rationale_pair") if pair else None,
        usual("answer_column", "answer", "answers") if pair else None,
    )


def make_table(options: ColumnOptions, everything: Records, chosen: Records, where: str) -> Table:
    """The chosen records as a canonical table; `everything` decides which labels there are."""
    columns = resolve_columns(options, everything, where)
    labels = Labels.of(everything, columns.label, options.task) if columns.label else None
    features = make_text_features(
        labels.feature if labels else None, pair=columns.text_pair is not None, answer=columns.answer is not None
    )
    kept = (record for record in chosen if not (options.skip_empty and _has_empty_text(record[1], columns)))
    return Table(features, _make_rows(kept, columns, labels))


class Labels(NamedTuple):
    """How labels are written: `names` of the classes, None for a regression."""

    names: list[str] | None

    @classmethod
    def of(cls, records: Records, column: str, task: str) -> Labels:
        """The labels of these records: a regression if the task says so, or one is a fraction."""
        if task == "regression":
            return cls(None)
        found = set()
        for where, row in records:
            value = _get_label(row, column, where)
            if not task and _is_fraction(value):
                return cls(None)
            found.add(_to_class_name(value))
        return cls(sorted(found, key=_sort_key))

    @property
    def feature(self) -> LabelType:
        """The label column's type, as `make_text_features` takes it."""
        return NUMBER if self.names is None else self.names

    def encode(self, value: Any, where: str) -> int | float:
        """A label as the column holds it. Raises ExegeteError for what is no number in a regression."""
        if self.names is not None:
            return self.names.index(_to_class_name(value))
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ExegeteError(f"{where}: expected a number as the label of a regression, got {value!r}") from None


def _find_text_columns(options: ColumnOptions, names: list[str], where: str) -> tuple[str, str | None]:
    if options.text_column:
        return options.text_column, options.text_pair_column or None
    for text, pair in PAIRS:
        if text in names and (options.text_pair_column or pair) in names:
            return text, options.text_pair_column or pair
    for text in TEXTS:
        if text in names:
            return text, options.text_pair_column or None
    raise ExegeteError(
        f"{where} has no column with a usual name for text ({', '.join(TEXTS)}, or two: "
        f"{', '.join(map('+'.join, PAIRS[1:5]))}); it has: {', '.join(names)}; "
        "name it with --text-column (text_column=)"
    )


def _has_empty_text(record: Row, columns: Columns) -> bool:
    return any(is_blank(record.get(name)) for name in (columns.text, columns.text_pair) if name)


def _get_label(row: Row, column: str, where: str) -> Any:
    value = get_field(row, column, where)
    if value is None or value == "" or isinstance(value, list | dict) or not math.isfinite(_to_number(value)):
        raise ExegeteError(f"{where}: expected a label in {column!r}, got {value!r}")
    return value


def _is_fraction(value: Any) -> bool:
    return not _to_number(value).is_integer() or (isinstance(value, str) and "." in value)


def _to_number(value: Any) -> float:
    """A label as a number; 0 for what is none."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0


def _to_class_name(value: Any) -> str:
    """The name of a class, from its value in the data; the number 1.0 becomes 1."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _sort_key(name: str) -> tuple[int, float, str]:
    """Whole numbers by value, before names by letter."""
    try:
        return 0, int(name), name
    except ValueError:
        return 1, 0, name


def _make_rows(records: Records, columns: Columns, labels: Labels | None) -> Iterator[Row]:
    for where, record in records:
        text = require_text(get_field(record, columns.text, where), columns.text, where)
        row: Row = {"text": text, "rationale": _parse_spans(record, columns.rationale, text, where)}
        if columns.text_pair:
            pair = require_text(get_field(record, columns.text_pair, where), columns.text_pair, where)
            row |= {"text_pair": pair, "rationale_pair": _parse_spans(record, columns.rationale_pair, pair, where)}
            if columns.answer:
                row["answer"] = _parse_answers(get_field(record, columns.answer, where), pair, where)
        if labels and columns.label:
            row["label"] = labels.encode(_get_label(record, columns.label, where), where)
        yield row


def _parse_spans(record: Row, column: str | None, text: str, where: str) -> list[list[int]] | None:
    value = _parse_json_cell(record.get(column), where) if column else None
    return None if value is None else require_spans(value, text, where)


def _parse_answers(value: Any, text: str, where: str) -> list[list[int]]:
    value = _parse_json_cell(value, where)
    if isinstance(value, dict):
        starts, texts = get_list(value, "answer_start", where), get_list(value, "text", where)
        if len(starts) != len(texts):
            raise ExegeteError(f"{where}: expected a start for each answer, got {len(starts)} for {len(texts)}")
        value = [require_answer(answer, start, text, where) for answer, start in zip(texts, starts, strict=True)]
    return [list(span) for span in dict.fromkeys(map(tuple, require_spans(value or [], text, where)))]


def _parse_json_cell(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError):
        raise ExegeteError(f"{where}: expected spans as JSON, [[start, end], ...], got {value[:60]!r}") from None
