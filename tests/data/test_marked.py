"""Marks of several people: their agreement on a rationale, and the formats of Label Studio and Argilla."""

from __future__ import annotations

import copy
import json

import pytest

import expound
from expound.data.readers.argilla import read_records, write_records
from expound.data.readers.label_studio import read_tasks, write_tasks
from expound.data.readers.marked import MarkedExample, aggregate_marks, find_runs
from expound.errors import ExpoundError

SMILE = "\N{GRINNING FACE}"


def test_half_of_the_people_decide_each_character():
    marks = {"a": ((0, 0, 6),), "b": ((0, 4, 10),), "c": (), "d": ()}
    example = MarkedExample(("0123456789",), None, marks)
    assert aggregate_marks(example) == [[[4, 6]]]
    assert aggregate_marks(example, share=0.25) == [[[0, 10]]]
    assert aggregate_marks(example, share=0.75) == [[]]
    assert aggregate_marks(MarkedExample(("abc",))) is None
    assert aggregate_marks(MarkedExample(("abc",), None, {"a": ()})) == [[]]


def test_marks_of_a_pair_stay_on_their_sides():
    assert aggregate_marks(MarkedExample(("abc", "defg"), None, {"a": ((0, 1, 2), (1, 2, 4))})) == [[[1, 2]], [[2, 4]]]


def test_runs_are_the_stretches_of_true():
    assert find_runs([True, True, False, True]) == [[0, 2], [3, 4]]
    assert find_runs([]) == []


@pytest.mark.parametrize("mark", [(0, 0, 4), (1, 0, 1), (0, 2, 2), (0, -1, 2)])
def test_marks_outside_their_text_are_refused(mark):
    with pytest.raises(ExpoundError, match="inside the texts"):
        MarkedExample(("abc",), None, {"a": (mark,)})


TASK = {
    "id": 9,
    "data": {"text": f"{SMILE} what a bad film"},
    "annotations": [
        {
            "completed_by": 3,
            "result": [
                {
                    "from_name": "label", "to_name": "text", "type": "labels",
                    "value": {"start": 10, "end": 18, "text": "bad film", "labels": ["why"]},
                },
                {"from_name": "sentiment", "to_name": "text", "type": "choices", "value": {"choices": ["neg"]}},
            ],
        },
        {"completed_by": 4, "was_cancelled": True, "result": []},
        {"completed_by": {"id": 5, "email": "eve@example.org"}, "result": []},
    ],
}  # fmt: skip


def test_label_studios_offsets_in_browser_units_are_found_by_the_text_they_mark():
    (found,) = read_tasks([TASK])
    assert found.label == "neg"
    assert found.marks == {"3": ((0, 9, 17),), "eve@example.org": ()}
    assert found.texts[0][9:17] == "bad film"


def test_label_studios_offsets_without_a_text_are_browser_units():
    task = copy.deepcopy(TASK)
    del task["annotations"][0]["result"][0]["value"]["text"]
    assert read_tasks([task])[0].marks == read_tasks([TASK])[0].marks


def test_a_span_that_is_not_the_text_it_says_is_refused():
    wrong = json.loads(json.dumps(TASK).replace('"bad film"', '"good film"', 1))
    wrong["data"]["text"] = TASK["data"]["text"]
    wrong["annotations"][0]["result"][0]["value"]["text"] = "good film"
    with pytest.raises(ExpoundError, match="task 1: the span 10 to 18"):
        read_tasks([wrong])


@pytest.mark.parametrize("examples", [
    [MarkedExample(("a bad film",), "neg", {"Ada": ((0, 2, 5),), "Ben": ()}), MarkedExample(("fine",), "pos")],
    [MarkedExample(("a", "b c"), None, {"Ada": ((1, 2, 3),)})],
])  # fmt: skip
def test_what_is_written_is_read_again(examples):
    assert read_tasks(json.loads(json.dumps(write_tasks(examples)))) == examples
    back = read_records(json.loads(json.dumps(write_records(examples))))
    assert [(e.texts, e.label, list(e.marks.values())) for e in back] == [
        (e.texts, e.label, list(e.marks.values())) for e in examples
    ]


def test_argillas_drafts_do_not_count():
    response = {"value": [{"label": "e", "start": 0, "end": 1}], "user_id": "u", "status": "draft"}
    record = {"fields": {"text": "ab"}, "responses": {"why": [response]}}
    assert read_records([record])[0].marks == {}
    assert read_records([record | {"responses": {"why": [response | {"status": "submitted"}]}}])[0].marks == {
        "u": ((0, 0, 1),)
    }


def test_invalid_argilla_records_are_refused():
    cases = [
        "{}",
        '[{"fields": {}}]',
        '[{"fields": 1}]',
        "[1]",
        '[{"fields": {"text": null}}]',
        '[{"fields": {"text": "a"}, "metadata": [1]}]',
        '[{"fields": {"text": "a"}, "responses": [1]}]',
        '[{"fields": {"text": "a"}, "responses": {"q": [1]}}]',
        '[{"fields": {"text": "a"}, "responses": {"q": [{"value": [{"start": Infinity, "end": 1}]}]}}]',
        '[{"fields": {"text": "a"}, "responses": {"q": [{"value": [{"start": "x"}]}]}}]',
    ]
    for content in cases:
        with pytest.raises(ExpoundError, match="the file"):
            read_records(json.loads(content))


@pytest.mark.parametrize(
    "content",
    [
        '[{"data": {"text": null}, "annotations": []}]',
        '[{"data": {"text": "a", "text_pair": 3}, "annotations": []}]',
        '[{"data": {"text": "a"}, "annotations": [1]}]',
        '[{"data": {"text": "a"}, "annotations": [{"result": [{"value": {"start": Infinity, "end": 1, "text": 0}}]}]}]',
    ],
)
def test_invalid_label_studio_tasks_are_refused(content):
    with pytest.raises(ExpoundError, match="the file"):
        read_tasks(json.loads(content))


@pytest.mark.parametrize(
    ("text", "label", "person"), [("a \ud83d", None, "x"), ("a", "\ud83d", "x"), ("a", None, "\udc00")]
)
def test_half_a_character_is_refused(text, label, person):
    with pytest.raises(ExpoundError, match="lone surrogate"):
        MarkedExample((text,), label, {person: ()})


def test_the_share_of_people_is_an_option_of_the_spec(tmp_path):
    path = tmp_path / "marks.json"
    marked = MarkedExample(("a bad film",), "neg", {"Ada": ((0, 2, 5),), "Ben": ()})
    path.write_text(json.dumps(write_tasks([marked, MarkedExample(("fine",), "pos")])))
    assert expound.load_data(f"label_studio:{path}", "all")["rationale"] == [[[2, 5]], None]
    assert expound.load_data(f"label_studio:{path}?share=0.6", "all")["rationale"] == [[], None]
    parts = [expound.load_data(f"label_studio:{path}", "all", seed=1)["text"], ["a bad film", "fine"]]
    assert parts[0] == parts[1]


def test_texts_and_pairs_do_not_mix(tmp_path):
    path = tmp_path / "marks.json"
    path.write_text(json.dumps(write_tasks([MarkedExample(("a",)), MarkedExample(("a", "b"))])))
    with pytest.raises(ExpoundError, match="got both"):
        expound.load_data(f"label_studio:{path}", "all")
