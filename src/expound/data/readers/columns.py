"""Conversion of tables to canonical rows: which column is the text, which the label, and the type of the label."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from expound.data.readers.base import (
    NUMBER,
    LabelType,
    Record,
    Rereadable,
    Row,
    Table,
    get_field,
    get_list,
    is_blank,
    make_text_features,
    require_answer,
    require_text,
)
from expound.data.spans import read_rationale, require_spans
from expound.errors import ExpoundError, check_choice

Records = Iterable[Record]
"""Rows with their places; every iteration begins anew."""

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
USUAL = set(chain(TEXTS, *PAIRS))
"""Names of columns that hold text."""
TASKS = ("classification", "regression")
ID = "id"
"""The column that always stays with its row, so that results can be joined back."""


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """The columns to read. An empty name means the column with a usual name, if the table has one.

    Args:
        text_column: the text, or the first text of a pair.
        text_pair_column: the second text.
        label_column: the label.
        rationale_column: the marked characters as a list of [start, end], the marked words, or a 0 or 1 for each word
            of the text; in a csv file as JSON. See `read_rationale`.
        rationale_pair_column: the same for the second text.
        answer_column: lists of [start, end] in characters of the second text, or SQuAD's
            {"text": [...], "answer_start": [...]}.
        task: classification or regression. By default labels with a fraction make a regression. The text 1.0 (as in a
            csv file) has a fraction; the number 1.0 is the class 1.
        keep_columns: further columns, separated by commas, that stay with each row; a column `id` always does.
        skip_empty: leave out rows with an empty text. By default they are an error.
    """

    text_column: str = ""
    text_pair_column: str = ""
    label_column: str = ""
    rationale_column: str = ""
    rationale_pair_column: str = ""
    answer_column: str = ""
    task: str = ""
    keep_columns: str = ""
    skip_empty: bool = False

    def __post_init__(self) -> None:
        if self.task:
            check_choice("task", self.task, TASKS)


class Columns(NamedTuple):
    """The names of the columns to read; None for a column that the table lacks."""

    text: str
    text_pair: str | None
    label: str | None
    rationale: str | None
    rationale_pair: str | None
    answer: str | None
    kept: tuple[str, ...]


def find_names(records: Records) -> list[str]:
    """Return the columns that any of the records has."""
    if isinstance(records, Rereadable) and records.names is not None:
        return list(records.names)
    # a dict keeps the order of the columns, and optional fields may be missing in some records
    names: dict[str, None] = {}
    for _, row in records:
        names.update(dict.fromkeys(row))
    return list(names)


def describe_columns(options: ColumnOptions, names: list[str], where: str, used: Collection[str] = ()) -> str:
    """Return a line that says which of a table's columns are read and which are not.

    Such as "columns: text ← review; no label, no rationale (unused: stars; give --label-column, --rationale-column)".
    Columns in `used` have another purpose and are not called unused. The line is empty if a text or a named column is
    missing, since reading the table raises an error then.
    """
    try:
        columns = find_columns(options, names, where)
    except ExpoundError:
        return ""
    read = []
    for name, column in columns._asdict().items():
        if column and name != "kept":
            read.append(name if name == column else f"{name} ← {column}")
    # answers take the place of a label and a rationale
    missing = [name for name in ("label", "rationale") if not getattr(columns, name) and not columns.answer]
    unused = [name for name in names if name not in (*columns, *columns.kept, *used)]
    line = f"columns: {', '.join([*read, *columns.kept])}"
    if missing:
        line += f"; no {', no '.join(missing)}"
    if unused:
        line += f" (unused: {', '.join(unused)}"
        if missing:
            line += f"; give --{'-column, --'.join(missing)}-column"
        line += ")"
    return line


def find_columns(options: ColumnOptions, names: list[str], where: str) -> Columns:
    """Return the columns to read, among those with these names.

    Raises:
        ExpoundError: a named column or every text column is missing; the message names the available columns.
    """
    kept = list(filter(None, map(str.strip, options.keep_columns.split(","))))
    asked = [(option, name) for option, name in vars(options).items() if option.endswith("_column")]
    for name in kept:
        asked.append(("keep_columns", name))
    for option, name in asked:
        if name and name not in names:
            raise ExpoundError(f"{where} has no column {name!r} ({option}); it has: {', '.join(names)}")
    if ID in names:
        kept = [ID, *kept]
    text, pair = _find_text_columns(options, names, where)

    def find(named: str, *candidates: str) -> str | None:
        return named or next((name for name in candidates if name in names), None)

    label = find(options.label_column, *LABELS)
    rationale, rationale_pair, answer = find(options.rationale_column, "rationale"), None, None
    if pair:
        rationale_pair = find(options.rationale_pair_column, "rationale_pair")
        answer = find(options.answer_column, "answer", "answers")
    return Columns(text, pair, label, rationale, rationale_pair, answer, tuple(dict.fromkeys(kept)))


def make_table(options: ColumnOptions, everything: Records, chosen: Records, where: str) -> Table:
    """Return the chosen records as a canonical table; its labels are the labels of `everything`."""
    columns = find_columns(options, find_names(everything), where)
    labels, feature = None, None
    if columns.label:
        labels = Labels.of(everything, columns.label, options.task)
        feature = labels.feature
    features = make_text_features(feature, pair=columns.text_pair is not None, answer=columns.answer is not None)
    if columns.kept:
        from datasets import Value

        features["kept"] = Value("string")
    return Table(features, Rereadable(partial(_make_rows, chosen, columns, labels, skip_empty=options.skip_empty)))


class Labels(NamedTuple):
    """The labels of a table: `names` of the classes, None for a regression."""

    names: list[str] | None

    @classmethod
    def of(cls, records: Records, column: str, task: str) -> Labels:
        """Return the labels of records: a regression if the task says so, or if a label has a fraction."""
        if task == "regression":
            return cls(None)
        names = set()
        for where, row in records:
            value = _get_label(row, column, where)
            if not task and _is_fraction(value):
                return cls(None)
            names.add(_to_class_name(value))
        return cls(sorted(names, key=_sort_key))

    @property
    def feature(self) -> LabelType:
        """The type of the label column, as `make_text_features` takes it."""
        return NUMBER if self.names is None else self.names

    def encode(self, value: Any, where: str) -> int | float:
        """Return a label's class index or number. Raises ExpoundError if the label of a regression is no number."""
        if self.names is not None:
            return self.names.index(_to_class_name(value))
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ExpoundError(f"{where}: expected a number as the label of a regression, got {value!r}") from None


def _find_text_columns(options: ColumnOptions, names: list[str], where: str) -> tuple[str, str | None]:
    if options.text_column:
        return options.text_column, options.text_pair_column or None
    for text, pair in PAIRS:
        if text in names and (options.text_pair_column or pair) in names:
            return text, options.text_pair_column or pair
    for text in TEXTS:
        if text in names:
            return text, options.text_pair_column or None
    raise ExpoundError(
        f"{where} has no column with a usual name for text ({', '.join(TEXTS)}, or two: "
        f"{', '.join(map('+'.join, PAIRS[1:5]))}); it has: {', '.join(names)}; "
        "name it with text_column=NAME (--text-column NAME)"
    )


def _get_label(row: Row, column: str, where: str) -> Any:
    value = get_field(row, column, where)
    if value is None or value == "" or isinstance(value, list | dict) or not math.isfinite(_to_number(value)):
        raise ExpoundError(f"{where}: expected a label in {column!r}, got {value!r}")
    return value


def _is_fraction(value: Any) -> bool:
    return not _to_number(value).is_integer() or (isinstance(value, str) and "." in value)


def _to_number(value: Any) -> float:
    """Return a label as a number; 0 if it is no number."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0


def _to_class_name(value: Any) -> str:
    """Return the name of a class from its value in the data."""
    # pandas and Parquet store whole numbers as floats if a value is missing
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _sort_key(name: str) -> tuple[int, float, str]:
    """Sort whole numbers by value, before other names by letter."""
    try:
        return 0, int(name), name
    except ValueError:
        return 1, 0, name


def _make_rows(records: Records, columns: Columns, labels: Labels | None, *, skip_empty: bool) -> Iterator[Row]:
    for where, record in records:
        texts = [record.get(column) for column in (columns.text, columns.text_pair) if column]
        if skip_empty and any(map(is_blank, texts)):
            continue
        text = require_text(get_field(record, columns.text, where), columns.text, where)
        row: Row = {"text": text, "rationale": _parse_spans(record, columns.rationale, text, where)}
        if columns.text_pair:
            pair = require_text(get_field(record, columns.text_pair, where), columns.text_pair, where)
            row |= {"text_pair": pair, "rationale_pair": _parse_spans(record, columns.rationale_pair, pair, where)}
            if columns.answer:
                row["answer"] = _parse_answers(get_field(record, columns.answer, where), pair, where)
        if labels and columns.label:
            row["label"] = labels.encode(_get_label(record, columns.label, where), where)
        if columns.kept:
            kept = {name: record.get(name) for name in columns.kept}
            row["kept"] = json.dumps(kept, ensure_ascii=False, default=str)
        yield row


def _parse_spans(record: Row, column: str | None, text: str, where: str) -> list[list[int]] | None:
    if column is None:
        return None
    value = _parse_json_cell(record.get(column), where)
    return None if value is None else read_rationale(value, text, where)


def _parse_answers(value: Any, text: str, where: str) -> list[list[int]]:
    value = _parse_json_cell(value, where)
    if isinstance(value, dict):
        starts, texts = get_list(value, "answer_start", where), get_list(value, "text", where)
        if len(starts) != len(texts):
            raise ExpoundError(f"{where}: expected a start for each answer, got {len(starts)} for {len(texts)}")
        value = [require_answer(answer, start, text, where) for answer, start in zip(texts, starts, strict=True)]
    answers = list[list[int]]()
    for span in require_spans(value or [], text, where):
        if span not in answers:
            answers.append(span)
    return answers


def _parse_json_cell(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        # A cell that cannot be JSON is a phrase of the text.
        if value.strip()[0] not in '[{"':
            return value
        raise ExpoundError(f"{where}: expected spans as JSON, [[start, end], ...], got {value[:60]!r}") from None
