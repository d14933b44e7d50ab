"""Label Studio's JSON: tasks with labelled spans of text, read and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from exegete.data.marked import Mark, MarkedExample
from exegete.data.readers.base import get_field, get_list, require_text
from exegete.errors import ExegeteError

TAG, LABEL = "rationale", "evidence"
TEXT, PAIR = "text", "text_pair"
FIELDS = ((TEXT, PAIR), ("premise", "hypothesis"), ("question", "context"), ("sentence1", "sentence2"))
SINGLE = (TEXT, "sentence", "review", "content")


def read_tasks(tasks: Any, where: str = "the file") -> list[MarkedExample]:
    """Reads an export of Label Studio (format JSON).

    Every labelled span of a text counts as evidence, whatever its label is called; cancelled annotations do not. A
    label of the example is taken from the task's data (`label`) or from a choice that the first annotator made.

    Raises:
        ExegeteError: something else than such an export, or spans that do not fit their texts.
    """
    if not isinstance(tasks, list):
        raise ExegeteError(f"{where}: expected a list of tasks, as Label Studio exports them in the format JSON")
    return [_parse_task(task, f"{where}, task {number}") for number, task in enumerate(tasks, 1)]


def write_tasks(examples: Sequence[MarkedExample]) -> list[dict[str, Any]]:
    """The examples as tasks with annotations, which Label Studio imports."""
    people = list(dict.fromkeys(person for example in examples for person in example.marks))
    numbers = count(1)
    return [
        {
            "id": number,
            "data": dict(zip((TEXT, PAIR), example.texts, strict=False))
            | ({} if example.label is None else {"label": example.label}),
            "annotations": [
                {
                    "id": next(numbers),
                    "completed_by": {"id": people.index(person) + 1, "email": f"{person}@exegete.invalid"},
                    "was_cancelled": False,
                    "result": [_make_result(example.texts, mark, place) for place, mark in enumerate(marks)],
                }
                for person, marks in example.marks.items()
            ],
        }
        for number, example in enumerate(examples, 1)
    ]


def _make_result(texts: Sequence[str], mark: Mark, place: int) -> dict[str, Any]:
    side, start, end = mark
    value = {"start": start, "end": end, "text": texts[side][start:end], "labels": [LABEL]}
    name = (TEXT, PAIR)[side]
    tag = TAG if side == 0 else f"{TAG}_pair"
    return {"id": f"m{place}", "from_name": tag, "to_name": name, "type": "labels", "value": value}


def _parse_task(task: Any, where: str) -> MarkedExample:
    data = get_field(task, "data", where)
    names = _find_text_fields(data, where)
    texts = tuple(require_text(data[name], name, where) for name in names)
    marks, label = dict[str, tuple[Mark, ...]](), data.get("label")
    for annotation in get_list(task, "annotations", where):
        if isinstance(annotation, dict) and annotation.get("was_cancelled"):
            continue
        results = get_list(annotation, "result", where)
        person = _annotator_name(annotation.get("completed_by"))
        marks[person] = marks.get(person, ()) + tuple(_parse_marks(results, names, texts, where))
        label = _first_choice(results) if label is None else label
    return MarkedExample(texts, None if isinstance(label, list | dict) else label, marks, where)


def _find_text_fields(data: Any, where: str) -> tuple[str, ...]:
    if not isinstance(data, dict):
        raise ExegeteError(f"{where}: expected an object in 'data', got {type(data).__name__}")
    pair = next((pair for pair in FIELDS if pair[0] in data and pair[1] in data), None)
    if pair is not None:
        return pair
    single = next((name for name in SINGLE if name in data), None)
    if single is None:
        raise ExegeteError(f"{where}: expected a text in 'data', found {', '.join(map(str, data)) or 'nothing'}")
    return (single,)


def _annotator_name(completed_by: Any) -> str:
    if isinstance(completed_by, Mapping):
        name = completed_by.get("email") or completed_by.get("id")
        return str(name).removesuffix("@exegete.invalid")
    return "unknown" if completed_by is None else str(completed_by)


def _parse_marks(results: list[Any], names: Sequence[str], texts: Sequence[str], where: str) -> Iterator[Mark]:
    for result in results:
        value = result.get("value") if isinstance(result, dict) else None
        if not isinstance(value, dict) or not {"start", "end"} <= value.keys() or not _is_text_span(value):
            continue
        target = result.get("to_name")
        side = names.index(target) if target in names else 0
        start, end = _parse_span(texts[side], value, where)
        if start < end:
            yield side, start, end


def _is_text_span(value: Mapping[str, Any]) -> bool:
    return "labels" in value or "hypertextlabels" in value or "text" in value


def _parse_span(text: str, value: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Start and end in characters. Browsers count in UTF-16 units; the marked text, where given, tells which it is."""
    try:
        start, end = int(value["start"]), int(value["end"])
    except (TypeError, ValueError, OverflowError):
        raise ExegeteError(f"{where}: expected numbers as start and end, got {value['start']!r:.40}") from None
    said = value.get("text")
    if not isinstance(said, str) or text[start:end].split() == said.split():
        return start, end
    units = text.encode("utf-16-le")
    inside = units[2 * start : 2 * end].decode("utf-16-le", "replace")
    if inside.split() != said.split():
        raise ExegeteError(
            f"{where}: the span {start} to {end} is {text[start:end]!r:.40} in the text, not {said!r:.40}"
        )
    before = len(units[: 2 * start].decode("utf-16-le", "replace"))
    return before, before + len(inside)


def _first_choice(results: list[Any]) -> str | None:
    for result in results:
        value = result.get("value") if isinstance(result, dict) else None
        choices = value.get("choices") if isinstance(value, dict) else None
        if isinstance(choices, list) and choices:
            return str(choices[0])
    return None
