"""Answers are exported as tables and as corpora, and marks are imported from other programs."""

from __future__ import annotations

import json
from io import BytesIO, StringIO

import pandas as pd
import pytest

import expound
from expound.data.readers.argilla import read_records
from expound.data.readers.label_studio import read_tasks, write_tasks
from expound.data.readers.marked import MarkedExample
from expound.errors import ExpoundError
from expound_people.exports import run_export
from expound_people.projects import find_project
from expound_people.results import load_marked_examples
from expound_people.tables import AnnotatorAnswer
from sites import METHODS, TEXTS, csrf, model
from studies import annotator, project, rank

MARKS = {0: {"Ada": [[0, 2, 13]], "Ben": [[0, 2, 8]]}, 1: {"Ada": []}, 3: {"Ada": [[0, 26, 37]], "Ben": [[0, 0, 5]]}}


@pytest.fixture
def marked_site(full_site):
    """A site with a study of marks: Ada has marked all examples but one, Ben two."""
    project(full_site, kind="highlight")
    with full_site.application.storage.write_session() as session:
        study = find_project(session, "first")
        ids = {person.name: person.id for person in study.annotators}
        for number, people in MARKS.items():
            for name, marks in people.items():
                content = {"marks": marks}
                session.add(
                    AnnotatorAnswer(annotator_id=ids[name], item_id=study.items[number].id, phase="", content=content)
                )
    return full_site


def export(made, name):
    with made.application.storage.read_session() as session:
        return run_export(session, find_project(session, "first"), name)[1]


def test_rankings_have_one_row_per_method_in_csv_and_parquet(full_site):
    tokens = project(full_site)
    client = annotator(full_site, tokens["Ada"])
    rank(client, 1, {"A": 2, "B": 1, "C": 4, "D": 4})
    table = pd.read_parquet(BytesIO(export(full_site, "answers.parquet")))
    assert table[["position", "rank"]].to_numpy().tolist() == [[1, 2], [2, 1], [3, 4], [4, 4]]
    assert set(table["method"]) == set(METHODS)
    assert set(table["annotator"]) == {"Ada"}
    text = pd.read_csv(StringIO(export(full_site, "answers.csv").decode()))
    for column in ("study", "kind", "example", "method", "position", "rank", "seconds", "prediction", "label"):
        assert text[column].tolist() == table[column].tolist()


def test_marks_become_a_corpus_that_training_reads(marked_site, tmp_path):
    path = tmp_path / "corpus.parquet"
    path.write_bytes(export(marked_site, "rationales.parquet"))
    data = expound.load_data(f"parquet:{path}", "all")
    assert data["text"] == TEXTS
    assert data["rationale"] == [[[2, 13]], [], None, [[0, 5], [26, 37]]]
    assert data.features["label"].names == ["bad", "good"]
    batch = model().encode([{**row, "label": None} for row in data])
    assert batch.has_rationale.tolist() == [True, True, False, True]
    assert int(batch.rationale_mask[0].sum()) > 0


@pytest.mark.parametrize(("name", "spec"), [("label-studio.json", "label_studio"), ("argilla.json", "argilla")])
def test_label_studio_and_argilla_exports_have_the_same_marks(marked_site, tmp_path, name, spec):
    path = tmp_path / name
    path.write_bytes(export(marked_site, name))
    data = expound.load_data(f"{spec}:{path}", "all")
    assert data["text"] == TEXTS
    assert data["rationale"] == [[[2, 13]], [], None, [[0, 5], [26, 37]]]
    assert data["label"] == [1, 0, 1, 0]


def test_exports_have_safe_file_names(marked_site, chief):
    reply = chief.get("/studies/first/export/label-studio.json")
    assert reply.headers["content-disposition"] == 'attachment; filename="first-label-studio.json"'
    assert read_tasks(reply.json())[0].texts == (TEXTS[0],)


def test_rankings_have_no_rationales_to_export(full_site, chief):
    project(full_site)
    assert chief.get("/studies/first/export/rationales.parquet").status_code == 422
    with pytest.raises(ExpoundError, match=r"it has: answers\.csv"):
        export(full_site, "../secret")


@pytest.mark.parametrize("kind", ["label-studio", "argilla"])
def test_imported_marks_are_exported_unchanged(full_site, chief, kind):
    given = [
        MarkedExample(("a bad film", "it was bad"), "x", {"7": ((0, 2, 5), (1, 7, 10))}),
        MarkedExample(("fine", "so"), "y"),
    ]
    content = write_tasks(given) if kind == "label-studio" else [
        {"fields": {"premise": "a bad film", "hypothesis": "it was bad"}, "metadata": {"label": "x"},
         "responses": {"why": [{"user_id": "7", "value": [{"label": "e", "start": 2, "end": 5}]}],
                       "why_pair": [{"user_id": "7", "value": [{"label": "e", "start": 7, "end": 10}]}]}},
        {"fields": {"premise": "fine", "hypothesis": "so"}, "metadata": {"label": "y"}},
    ]  # fmt: skip
    data = {"csrf": csrf(chief.get("/studies")), "name": "imported", "format": kind}
    page = chief.post("/studies/import", data=data, files={"file": ("x.json", json.dumps(content))})
    assert page.url.path == "/studies/imported"
    assert "imported" in page.text
    with full_site.application.storage.read_session() as session:
        assert load_marked_examples(session, find_project(session, "imported")) == given
    again = chief.get(f"/studies/imported/export/{kind}.json").json()
    back = read_tasks(again) if kind == "label-studio" else read_records(again)
    assert [(each.texts, each.label, list(each.marks.values())) for each in back] == [
        (each.texts, each.label, list(each.marks.values())) for each in given
    ]


def test_long_names_with_the_same_beginning_stay_distinct(full_site, chief):
    people = ["x" * 80, "x" * 90, "x" * 79 + "y", "x" * 80 + "z"]
    given = [
        MarkedExample(("a bad film",), None, {person: ((0, place, place + 1),) for place, person in enumerate(people)})
    ]
    data = {"csrf": csrf(chief.get("/studies")), "name": "first", "format": "label-studio"}
    chief.post("/studies/import", data=data, files={"file": ("x.json", json.dumps(write_tasks(given)))})
    (back,) = read_tasks(json.loads(export(full_site, "label-studio.json")))
    assert list(back.marks.values()) == list(given[0].marks.values())
    assert list(back.marks) == ["x" * 80, "x" * 78 + " 2", people[2], "x" * 78 + " 3"]
    assert (
        len({row["annotator"] for row in pd.read_csv(BytesIO(export(full_site, "answers.csv"))).to_dict("records")})
        == 4
    )


WRONG = [
    '[{"data": {"text": "half \\ud83d"}, "annotations": []}]',
    "{",
    pytest.param("[" * 100_000, id="deep"),
    "{}",
    '[{"data": {}}]',
    '[{"data": {"text": "a"}}]',
    "[]",
    '["x"]',
]


@pytest.mark.parametrize("content", WRONG)
def test_invalid_import_files_are_refused_with_a_reason(chief, content):
    data = {"csrf": csrf(chief.get("/studies")), "name": "imported", "format": "label-studio"}
    reply = chief.post("/studies/import", data=data, files={"file": ("x.json", content)})
    assert reply.status_code == 422
    assert 'role="alert"' in reply.text
