"""Reading and writing of Argilla's records, as `dataset.records.to_json` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from expound.data.readers.base import get_field
from expound.data.readers.label_studio import LABEL, PAIR, TEXT, find_text_fields, make_example
from expound.data.readers.marked import Mark, MarkedExample
from expound.errors import ExpoundError

QUESTIONS = ("rationale", "rationale_pair")


def read_records(records: Any, where: str = "the file") -> list[MarkedExample]:
    """Convert an export of Argilla 2. Every submitted span of a span question is evidence.

    A question belongs to the second text if its name ends in `_pair` or is the name of that text's field.

    Raises:
        ExpoundError: no export of Argilla, or spans outside of their texts.
    """
    if not isinstance(records, list):
        raise ExpoundError(f"{where}: expected a list of records, as Argilla's records.to_json writes them")
    return [_parse_record(record, f"{where}, record {number}") for number, record in enumerate(records, 1)]


def write_records(examples: Sequence[MarkedExample]) -> list[dict[str, Any]]:
    """Return examples as records with the fields `text` (and `text_pair`) and a span question on each."""
    return [_make_record(example, number) for number, example in enumerate(examples, 1)]


def _make_record(example: MarkedExample, number: int) -> dict[str, Any]:
    responses: dict[str, list[dict[str, Any]]] = {}
    for side, question in enumerate(QUESTIONS[: len(example.texts)]):
        responses[question] = [_make_response(person, marks, side) for person, marks in example.marks.items()]
    return {
        "id": str(number),
        "fields": dict(zip((TEXT, PAIR), example.texts, strict=False)),
        "metadata": {} if example.label is None else {"label": example.label},
        "suggestions": {},
        "responses": responses,
        "vectors": {},
        "status": "completed" if example.marks else "pending",
    }


def _make_response(person: str, marks: Sequence[Mark], side: int) -> dict[str, Any]:
    spans = [{"label": LABEL, "start": start, "end": end} for where, start, end in marks if where == side]
    return {"value": spans, "user_id": str(uuid5(NAMESPACE_URL, f"expound:{person}"))}


def _parse_record(record: Any, where: str) -> MarkedExample:
    get_field(record, "fields", where)
    fields = _get_object(record, "fields", where)
    names = find_text_fields(fields, "fields", where)
    marks, label = dict[str, tuple[Mark, ...]](), _get_object(record, "metadata", where).get("label")
    for question, responses in _get_object(record, "responses", where).items():
        side = 1 if len(names) == 2 and (question.endswith("_pair") or question == names[1]) else 0
        for person, value in _submitted_responses(responses, where):
            if isinstance(value, list):
                marks[person] = marks.get(person, ()) + tuple(_parse_marks(value, side, where))
            elif isinstance(value, str) and label is None:
                label = value
    return make_example(fields, names, label, marks, where)


def _get_object(record: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return the object in a field of a record, empty if the field is missing or null."""
    value = record.get(name) or {}
    if not isinstance(value, dict):
        raise ExpoundError(f"{where}: expected an object in {name!r}, got {type(value).__name__}")
    return value


def _submitted_responses(responses: Any, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(responses, list):
        raise ExpoundError(f"{where}: expected lists of responses, got {type(responses).__name__}")
    for response in responses:
        if not isinstance(response, Mapping):
            raise ExpoundError(f"{where}: expected responses with 'value' and 'user_id', got {response!r:.40}")
        if response.get("status") not in ("draft", "discarded"):
            yield str(response.get("user_id", "unknown")), response.get("value")


def _parse_marks(spans: Sequence[Any], side: int, where: str) -> Iterator[Mark]:
    for span in spans:
        if not isinstance(span, Mapping):
            continue
        try:
            yield side, int(get_field(span, "start", where)), int(get_field(span, "end", where))
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, ExpoundError):
                raise
            raise ExpoundError(f"{where}: expected numbers as start and end, got {dict(span)!r:.60}") from None
