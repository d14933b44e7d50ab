"""Reading and writing of Label Studio's JSON: tasks with labeled spans of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from expound.data.readers.base import get_field, get_list, require_text
from expound.data.readers.marked import Mark, MarkedExample
from expound.errors import ExpoundError

TAG, LABEL = "rationale", "evidence"
TEXT, PAIR = "text", "text_pair"
FIELDS = ((TEXT, PAIR), ("premise", "hypothesis"), ("question", "context"), ("sentence1", "sentence2"))
SINGLE = (TEXT, "sentence", "review", "content")


def read_tasks(tasks: Any, where: str = "the file") -> list[MarkedExample]:
    """Convert an export of Label Studio (format JSON).

    Every labeled span is evidence, whichever label it has; cancelled annotations are ignored. The label of an example
    is `label` in the task's data, or else the choice of the first annotator.

    Raises:
        ExpoundError: no export of Label Studio, or spans that do not match their texts.
    """
    if not isinstance(tasks, list):
        raise ExpoundError(f"{where}: expected a list of tasks, as Label Studio exports them in the format JSON")
    return [_parse_task(task, f"{where}, task {number}") for number, task in enumerate(tasks, 1)]


def write_tasks(examples: Sequence[MarkedExample]) -> list[dict[str, Any]]:
    """Return examples as tasks with annotations, which Label Studio imports."""
    people: dict[str, int] = {}
    tasks, annotation_ids = [], count(1)
    for number, example in enumerate(examples, 1):
        data: dict[str, Any] = dict(zip((TEXT, PAIR), example.texts, strict=False))
        if example.label is not None:
            data["label"] = example.label
        annotations = []
        for person, marks in example.marks.items():
            annotation = {
                "id": next(annotation_ids),
                "completed_by": {
                    "id": people.setdefault(person, len(people) + 1),
                    "email": f"{person}@expound.invalid",
                },
                "was_cancelled": False,
                "result": [_make_result(example.texts, mark, place) for place, mark in enumerate(marks)],
            }
            annotations.append(annotation)
        tasks.append({"id": number, "data": data, "annotations": annotations})
    return tasks


def _make_result(texts: Sequence[str], mark: Mark, place: int) -> dict[str, Any]:
    side, start, end = mark
    value = {"start": start, "end": end, "text": texts[side][start:end], "labels": [LABEL]}
    tag, name = ((TAG, TEXT), (f"{TAG}_pair", PAIR))[side]
    return {"id": f"m{place}", "from_name": tag, "to_name": name, "type": "labels", "value": value}


def _parse_task(task: Any, where: str) -> MarkedExample:
    data = get_field(task, "data", where)
    if not isinstance(data, dict):
        raise ExpoundError(f"{where}: expected an object in 'data', got {type(data).__name__}")
    names = find_text_fields(data, "data", where)
    texts = [require_text(data[name], name, where) for name in names]
    marks, label = dict[str, tuple[Mark, ...]](), data.get("label")
    for annotation in get_list(task, "annotations", where):
        if isinstance(annotation, dict) and annotation.get("was_cancelled"):
            continue
        results = get_list(annotation, "result", where)
        person = _annotator_name(annotation.get("completed_by"))
        marks[person] = marks.get(person, ()) + tuple(_parse_marks(results, names, texts, where))
        if label is None:
            label = _first_choice(results)
    return make_example(data, names, label, marks, where)


def make_example(
    data: Mapping[str, Any], names: Sequence[str], label: Any, marks: Mapping[str, tuple[Mark, ...]], where: str
) -> MarkedExample:
    """Return the example with the texts in these fields; a label that is no name or number is left out."""
    texts = tuple(require_text(data[name], name, where) for name in names)
    if isinstance(label, list | dict):
        label = None
    return MarkedExample(texts, label, marks, where)


def find_text_fields(data: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    """Return the names of the one or two texts in an object. Raises ExpoundError if it has no text."""
    for pair in FIELDS:
        if pair[0] in data and pair[1] in data:
            return pair
    for name in SINGLE:
        if name in data:
            return (name,)
    raise ExpoundError(f"{where}: expected a text in {field!r}, found {', '.join(map(str, data)) or 'nothing'}")


def _annotator_name(completed_by: Any) -> str:
    if isinstance(completed_by, Mapping):
        # exports of newer versions name the annotator by an object, older ones by a number
        name = completed_by.get("email") or completed_by.get("id")
        return str(name).removesuffix("@expound.invalid")
    return "unknown" if completed_by is None else str(completed_by)


def _parse_marks(results: list[Any], names: Sequence[str], texts: Sequence[str], where: str) -> Iterator[Mark]:
    for result in results:
        value = _get_value(result)
        if not {"start", "end"} <= value.keys() or value.keys().isdisjoint(("labels", "hypertextlabels", "text")):
            continue
        side = names.index(result["to_name"]) if result.get("to_name") in names else 0
        start, end = _parse_span(texts[side], value, where)
        if start < end:
            yield side, start, end


def _get_value(result: Any) -> dict[str, Any]:
    """Return the value of a result, empty for a malformed one."""
    if isinstance(result, dict) and isinstance(result.get("value"), dict):
        return dict(result["value"])
    return {}


def _parse_span(text: str, value: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Return start and end in characters; `text` of the value, if it has one, is the text between them.

    Without it they are counted as browsers do, in UTF-16 code units.
    """
    try:
        start, end = int(value["start"]), int(value["end"])
    except (TypeError, ValueError, OverflowError):
        raise ExpoundError(f"{where}: expected numbers as start and end, got {value['start']!r:.40}") from None
    expected = value.get("text")
    if isinstance(expected, str) and text[start:end].split() == expected.split():
        return start, end
    # browsers count UTF-16 code units, of which an emoji has two
    units = text.encode("utf-16-le")
    inside = units[2 * start : 2 * end].decode("utf-16-le", "replace")
    if isinstance(expected, str) and inside.split() != expected.split():
        raise ExpoundError(
            f"{where}: the span {start} to {end} is {text[start:end]!r:.40} in the text, not {expected!r:.40}"
        )
    before = len(units[: 2 * start].decode("utf-16-le", "replace"))
    return before, before + len(inside)


def _first_choice(results: list[Any]) -> str | None:
    for result in results:
        choices = _get_value(result).get("choices")
        if isinstance(choices, list) and choices:
            return str(choices[0])
    return None
