"""The loop: marks become training data, and people compare the old model with the new one blind."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

import exegete
from exegete.cli import main
from exegete.errors import ExegeteError
from exegete.web.human_study.cases import Case, followed_up
from exegete.web.human_study.projects import create, find
from exegete.web.human_study.tables import Annotator, Answer, now
from sites import METHODS, TEXTS, annotator, csrf, model, project, storage

MADE = {"towns": 40, "other": 2}


@pytest.fixture
def marked(tmp_path):
    """A storage with two studies of marks: in the first, Ada marks the first word and Ben the first two."""
    made = storage(tmp_path)
    for name, count in MADE.items():
        marks = {"Ada": ((0, 0, 5),), "Ben": ((0, 0, 5), (0, 6, 7))}
        found = [
            Case((f"small {'town' if n % 2 else 'film'} {n}",), label=str(n % 2), marks=marks) for n in range(count)
        ]
        with made.writing() as session:
            create(session, name, found, "highlight")
    yield made, str(tmp_path / "studies.db")
    made.close()


def test_marks_are_read_from_where_they_are_kept(marked):
    _, path = marked
    data = exegete.load_data(f"study:{path}?name=towns", "all")
    assert len(data) == 40
    assert data["rationale"][0] == [[0, 5], [6, 7]]
    assert exegete.load_data(f"study:{path}?name=towns&share=0.6", "all")["rationale"][0] == [[0, 5]]
    assert data.features["label"].names == ["0", "1"]
    with pytest.raises(ExegeteError, match="name= one of its studies in which words are marked: towns, other"):
        exegete.load_data(f"study:{path}", "all")
    with pytest.raises(ExegeteError, match=r"unknown study in which words are marked 'town'.*towns"):
        exegete.load_data(f"study:{path}?name=town", "all")


def test_people_who_did_not_complete_a_protocol_are_not_counted(marked):
    made, path = marked
    with made.writing() as session:
        study = find(session, "other")
        for status in ("", "complete", "failed"):
            person = Annotator(project_id=study.id, name=status or "under way", slot=0, status=status, joined=now())
            session.add(person)
            session.flush()
            for item in study.items:
                content = {"marks": [[0, 6, 10]]}
                session.add(Answer(annotator_id=person.id, item_id=item.id, phase="", content=content))
    data = exegete.load_data(f"study:{path}?name=other&share=0.3", "all")
    assert data["rationale"][0] == [
        [0, 5],
        [6, 10],
    ]  # Ada, Ben and one more of three: each part is marked by two or one
    assert exegete.load_data(f"study:{path}?name=other&share=0.6", "all")["rationale"][0] == [[0, 5], [6, 7]]


def test_what_is_no_storage_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)
    sqlite3.connect(tmp_path / "empty.db").close()
    for name, told in (("text.db", "is no storage"), ("empty.db", "is no storage"), ("nowhere.db", "no file")):
        with pytest.raises(ExegeteError, match=told):
            exegete.load_data(f"study:{tmp_path}/{name}", "all")


def test_a_model_is_trained_on_marks_that_a_page_collected(whole, tmp_path):
    tokens = project(
        whole, kind="highlight", people=("Ada",), texts=[f"{text} {n}" for n in range(8) for text in TEXTS]
    )
    client = annotator(whole, tokens["Ada"])
    for place in range(1, 33):
        page = client.get(f"/annotate/{place}")
        client.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": "", "seconds": "2", "unit": ["0", "1"]})
    path = whole.studies.engine.url.database
    command = ["train", "er_joint", "--config", "tiny", "--data", f"study:{path}", "--output-dir", f"{tmp_path}/guided"]
    settings = ["--set", "max_steps=2", "--set", "per_device_train_batch_size=4", "--device", "cpu", "--quiet"]
    assert main([*command, *settings]) == 0
    assert exegete.load(str(tmp_path / "guided"), device="cpu").labels == ("bad", "good")


def test_two_models_are_compared_on_what_they_agree_on(whole):
    other = model()
    rows = [{"text": text} for text in TEXTS]
    found = followed_up({"old": model(), "new": other}, rows, METHODS[0])
    assert [case.texts for case in found] == [(text,) for text in TEXTS]
    assert all(set(case.explanations) == {"old", "new"} for case in found)
    one = exegete.attribute(model(), TEXTS[0], METHODS[0])[0]
    assert np.allclose(found[0].explanations["new"].word_scores, one.word_scores)
    with whole.studies.writing() as session:
        create(session, "follow-up", found, "rank")
