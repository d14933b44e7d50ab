"""The loop: marks become training data, and people compare the old model with the new one blind."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import make_url

import expound
from expound.cli import main
from expound.data.provenance import digest_data
from expound.errors import ExpoundError
from expound.models.loading.checkpoint import digest_weights
from expound.serve import Site
from expound_people.application import make_application
from expound_people.exports import run_export
from expound_people.items import StudyItem, make_follow_up_items
from expound_people.origin import describe_origin, format_data_spec, make_follow_up_commands
from expound_people.projects import create_project, find_project
from expound_people.storage import Storage
from expound_people.tables import Annotator, AnnotatorAnswer, utc_now
from sites import METHODS, TEXTS, TOKEN, admin, csrf, model
from studies import annotator, project, storage

MADE = {"towns": 40, "other": 2}


def create_marked_studies(made):
    """Creates two studies in which Ada has marked the first word and Ben the first two."""
    for name, count in MADE.items():
        marks = {"Ada": ((0, 0, 5),), "Ben": ((0, 0, 5), (0, 6, 7))}
        found = [
            StudyItem((f"small {'town' if n % 2 else 'film'} {n}",), label=str(n % 2), marks=marks)
            for n in range(count)
        ]
        with made.write_session() as session:
            create_project(session, name, found, "highlight")


@pytest.fixture
def marked_storage(tmp_path):
    """A storage with these studies, and the path of its file."""
    made = storage(tmp_path)
    create_marked_studies(made)
    yield made, str(tmp_path / "studies.db")
    made.close()


def test_the_study_reader_reads_marks_from_the_storage(marked_storage):
    _, path = marked_storage
    data = expound.load_data(f"study:{path}?name=towns", "all")
    assert len(data) == 40
    assert data["rationale"][0] == [[0, 5], [6, 7]]
    assert expound.load_data(f"study:{path}?name=towns&share=0.6", "all")["rationale"][0] == [[0, 5]]
    assert data.features["label"].names == ["0", "1"]
    with pytest.raises(ExpoundError, match="name= one of its studies in which words are marked: towns, other"):
        expound.load_data(f"study:{path}", "all")
    with pytest.raises(ExpoundError, match=r"unknown study in which words are marked 'town'.*towns"):
        expound.load_data(f"study:{path}?name=town", "all")


def test_people_who_did_not_complete_a_protocol_are_not_counted(marked_storage):
    made, path = marked_storage
    with made.write_session() as session:
        study = find_project(session, "other")
        for status in ("", "complete", "failed"):
            person = Annotator(project_id=study.id, name=status or "under way", slot=0, status=status, joined=utc_now())
            session.add(person)
            session.flush()
            for item in study.items:
                content = {"marks": [[0, 6, 10]]}
                session.add(AnnotatorAnswer(annotator_id=person.id, item_id=item.id, phase="", content=content))
    data = expound.load_data(f"study:{path}?name=other&share=0.3", "all")
    assert data["rationale"][0] == [
        [0, 5],
        [6, 10],
    ]  # Ada, Ben and one more of three: each part is marked by two or one
    assert expound.load_data(f"study:{path}?name=other&share=0.6", "all")["rationale"][0] == [[0, 5], [6, 7]]


def test_the_study_reader_accepts_the_spec_on_the_page(url):
    made = Storage(url)
    create_marked_studies(made)
    spec = format_data_spec(made.engine.url, "towns")
    data = expound.load_data(spec, "all")
    assert (len(data), data["rationale"][0], data["label"][:2]) == (40, [[0, 5], [6, 7]], [0, 1])
    sizes = [len(expound.load_data(spec, split)) for split in ("train", "dev", "test")]
    assert sum(sizes) == 40
    assert min(sizes) > 0
    with pytest.raises(ExpoundError, match=r"unknown study in which words are marked 'town'.*towns"):
        expound.load_data(format_data_spec(made.engine.url, "town"), "all")
    made.close()


def test_unreachable_servers_and_passwords_in_specs_are_refused(monkeypatch):
    with pytest.raises(ExpoundError, match="is no storage of studies") as refused:
        expound.load_data("study:postgresql://me@127.0.0.1:1/studies?name=films", "all")
    assert "postgresql://me@127.0.0.1:1/studies" in str(refused.value)
    with pytest.raises(ExpoundError, match="give it as PGPASSWORD") as refused:
        expound.load_data("study:postgresql://me:hunter2@127.0.0.1:1/studies", "all")
    assert "hunter2" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExpoundError, match=r"pip install 'expound-people\[postgres\]'"):
        expound.load_data("study:postgresql://me@127.0.0.1:1/studies", "all")


def test_shown_storage_urls_have_no_password():
    told = format_data_spec(make_url("postgresql+psycopg://me:hunter2@db.example.org:5433/studies"), "old films")
    assert told == "study:postgresql://me@db.example.org:5433/studies?name=old+films"
    assert format_data_spec(make_url("sqlite:////data/s.db"), "films") == "study:/data/s.db?name=films"


def test_the_page_offers_training_data_and_the_next_commands(marked_storage, tmp_path):
    made, path = marked_storage
    chief = admin(Site(TOKEN, application=make_application(made)))
    page = chief.get("/studies/towns")
    assert "40 of 40 examples are marked." in page.text
    assert f"expound train er_joint --config tiny --data 'study:{path}?name=towns' --output-dir corrected" in unescape(
        page.text
    )
    expected = expound.load_data(f"study:{path}?name=towns", "all")
    for kind in ("jsonl", "parquet"):
        link = re.search(rf'href="([^"]*rationales.{kind})"', page.text).group(1)
        (tmp_path / f"marks.{kind}").write_bytes(chief.get(link).content)
        data = expound.load_data(f"{kind}:{tmp_path}/marks.{kind}", "all")
        names = data.features["label"].names
        assert data["text"] == expected["text"]
        assert data["rationale"] == expected["rationale"]
        assert [names[label] for label in data["label"]] == [str(n % 2) for n in range(40)]


def test_an_invalid_storage_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)
    sqlite3.connect(tmp_path / "empty.db").close()
    for name, told in (("text.db", "is no storage"), ("empty.db", "is no storage"), ("nowhere.db", "no file")):
        with pytest.raises(ExpoundError, match=told):
            expound.load_data(f"study:{tmp_path}/{name}", "all")


def test_the_pages_command_trains_a_model_and_its_study_names_the_marks(full_site, chief, tmp_path, monkeypatch):
    tokens = project(
        full_site, kind="highlight", people=("Ada",), texts=[f"{text} {n}" for n in range(8) for text in TEXTS]
    )
    client = annotator(full_site, tokens["Ada"])
    for place in range(1, 33):
        page = client.get(f"/annotate/{place}")
        client.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": "", "seconds": "2", "unit": ["0", "1"]})
    told = shlex.split(make_follow_up_commands(full_site.application.storage.engine.url, "first", None)[0])[1:]
    settings = ["--set", "max_steps=2", "--set", "per_device_train_batch_size=4", "--device", "cpu", "--quiet"]
    monkeypatch.chdir(tmp_path)
    assert main([*told, *settings]) == 0
    made = expound.load("corrected", device="cpu")
    assert made.labels == ("bad", "good")
    found = describe_origin({"new": made}, {"new": "corrected"}, "csv:x.csv", [StudyItem(("a film",))])
    new, run = found["models"]["new"], json.loads(Path("corrected/expound_run.json").read_text())
    assert (new["weights"], new["trained_on"]) == (digest_weights(made.model), run["config"]["data"]["train"])
    assert new["trained_on"]["source"].startswith("study:/")
    assert new["trained_on"]["digest"] == digest_data(
        expound.load_data(format_data_spec(full_site.application.storage.engine.url, "first"))
    )
    with full_site.application.storage.write_session() as session:
        create_project(
            session, "follow-up", make_follow_up_items({"old": made, "new": made}, [{"text": TEXTS[0]}]), origin=found
        )
    with full_site.application.storage.read_session() as session:
        study = find_project(session, "follow-up")
        assert json.loads(run_export(session, study, "results.json")[1])["origin"] == found
        assert f"trained on {new['trained_on']['source']}" in run_export(session, study, "methods.md")[1].decode()
    page = unescape(chief.get("/studies/follow-up").text)
    assert new["weights"] in page
    assert new["trained_on"]["digest"] in page


def test_models_are_compared_on_examples_with_equal_answers(full_site):
    other = model()
    rows = [{"text": text} for text in TEXTS]
    found = make_follow_up_items({"old": model(), "new": other}, rows, METHODS[0])
    assert [case.texts for case in found] == [(text,) for text in TEXTS]
    assert all(set(case.explanations) == {"old", "new"} for case in found)
    one = expound.attribute(model(), TEXTS[0], METHODS[0])[0]
    assert np.allclose(found[0].explanations["new"].scores[0], one.scores[0])
    with full_site.application.storage.write_session() as session:
        create_project(session, "follow-up", found, "rank")
