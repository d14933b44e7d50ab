"""The exports of a study by a protocol: tables, results, a paragraph, a figure; careless people are left out."""

from __future__ import annotations

import json
from io import StringIO
from xml.etree import ElementTree

import pandas as pd
import pytest

from expound_people.exports import get_exports, run_export
from expound_people.participation import load_participations
from expound_people.projects import find_project
from expound_people.protocol.file import digest_protocol
from participants import (
    METHODS,
    answer,
    answer_everything,
    create_planted_study,
    follow_link,
    go_to_main_part,
    protocol,
)
from sites import csrf
from studies import annotator, project, rank


@pytest.fixture(scope="module")
def study_site(tmp_path_factory):
    """A site with a study of three careful people, a careless one, one who withdraws, and one who is under way."""
    from studies import site

    found = site(tmp_path_factory.mktemp("planned"), with_model=False)
    create_planted_study(found, protocol())
    for number in range(3):
        client, _ = follow_link(found, number)
        page = go_to_main_part(client)
        if number == 2:
            # People who agree in everything have no variance to model.
            answer(client, page, lambda colored: dict(zip(colored, reversed(colored.values()), strict=True)))
        answer_everything(client, seconds=str(20 + number))
    careless, _ = follow_link(found, 3)
    go_to_main_part(careless)
    answer_everything(careless, ranks=1, seconds="1")
    leaving, _ = follow_link(found, 4)
    leaving.post("/annotate/withdraw", data={"csrf": csrf(leaving.get("/annotate"))})
    follow_link(found, 5)
    yield found
    found.application.storage.close()


def export(study_site, name):
    with study_site.application.storage.read_session() as session:
        return run_export(session, find_project(session, "films"), name)[1].decode()


def test_careless_people_are_flagged_and_left_out(study_site):
    with study_site.application.storage.read_session() as session:
        people = {each.person.name: each for each in load_participations(session, find_project(session, "films"))}
    assert set(people["P004"].quality.flags) == {"too fast", "checks missed", "all alike"}
    assert [name for name, each in people.items() if each.is_included] == ["P001", "P002", "P003"]
    assert not any(people[name].quality.is_careless for name in ("P001", "P002", "P003"))
    found = json.loads(export(study_site, "results.json"))
    assert found["answers"] == 12
    assert found["people"] == {"complete": 4, "withdrawn": 1, "under way": 1, "flagged": 1}
    assert [row["method"] for row in found["trueskill"]] == list(METHODS)
    assert found["mixed_model"]["effects"][0]["mean"] == pytest.approx(2)  # grad_like is always second
    assert found["protocol_sha256"] == digest_protocol(protocol())


def test_exported_tables_have_every_answer(study_site):
    people = pd.read_csv(StringIO(export(study_site, "people.csv")))
    assert people["status"].tolist() == ["complete"] * 4 + ["withdrawn", "under way"]
    assert people["PROLIFIC_PID"].tolist()[:4] == ["p0", "p1", "p2", "p3"]
    assert people.loc[people["status"] == "withdrawn", "PROLIFIC_PID"].isna().all()
    assert people["trust"].tolist()[:4] == [5.0] * 4  # 5, and 1 of 5 turned round
    assert people["trust_2"].tolist()[:4] == [1] * 4
    assert people["checks_missed"].tolist()[:4] == [0, 0, 0, 1]
    answers = pd.read_csv(StringIO(export(study_site, "answers.csv")))
    assert answers.groupby("annotator")["included"].first().to_dict() == {
        "P001": True, "P002": True, "P003": True, "P004": False,
    }  # fmt: skip
    assert set(answers["confidence"]) == {4}
    assert len(answers) == 4 * 4 * len(METHODS)
    raw = json.loads(export(study_site, "raw.json"))
    assert [sum(each["role"] == "check" for each in person["answers"]) for person in raw["people"]] == [1] * 4 + [0, 0]
    assert "token" not in export(study_site, "raw.json")


def test_methods_paragraph_figure_and_protocol_are_exported(study_site):
    text = export(study_site, "methods.md")
    for part in (
        "on Prolific (4 complete, 1 under way, 1 withdrawn)",
        "1 were left out as careless",
        "which left 3",
        digest_protocol(protocol()),
        "People ranked 3 unnamed explanations of each example, ties allowed; each was given 4 of 6 examples",
        "a linear mixed model",
        "Krippendorff's α = 0.68",
    ):
        assert part in text
    assert export(study_site, "protocol.yaml") == protocol()
    drawn = ElementTree.fromstring(export(study_site, "figure.svg"))
    assert drawn.tag.endswith("svg")


def test_a_study_without_a_protocol_lacks_its_exports_and_tells_who_finished(full_site, chief):
    links = project(full_site, people=("Ada", "Ben", "Eve"))
    ada = annotator(full_site, links["Ada"])
    rank(ada, 1, {"A": 1, "B": 2, "C": 3, "D": 4})
    rank(ada, 2, {"A": 3, "B": 1, "C": 2, "D": 4})
    with full_site.application.storage.read_session() as session:
        found = find_project(session, "first")
        assert not {"people.csv", "raw.json", "protocol.yaml"} & set(get_exports(found))
        text = run_export(session, found, "methods.md")[1].decode()
        assert "Of 3 people who were invited, 1 began and 0 answered everything; all answers are analysed." in text
        # One person has no agreement, no interval clustered by person, and no mixed model.
        assert "analysed by TrueSkill.\n" in text
        assert json.loads(run_export(session, found, "results.json")[1])["people"]["finished"] == 0
        assert run_export(session, found, "figure.svg")[1].startswith(b"<?xml")
    page = chief.get("/studies/first/results").text
    assert "3 invited, 1 began, 0 finished; all answers count here" in page
    assert "more answers needed" in page
    assert "–</td>" not in page
