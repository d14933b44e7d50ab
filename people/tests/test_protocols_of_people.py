"""Protocols: from a platform's link to the completion code, and who is let in."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from sqlalchemy import select

from expound.cli import main
from expound.errors import ExpoundError
from expound_people.items import restore_explanation
from expound_people.projects import REPLACED_TOKEN_TIME, find_project
from expound_people.protocol.file import KnownPart, digest_protocol, parse_protocol, read_protocol
from expound_people.protocol.known_answers import has_passed, make_known_item
from expound_people.results import compute_findings, find_widest_interval, load_answers
from expound_people.tables import Annotator, AnnotatorAnswer, AnnotatorStep, utc_now
from participants import (
    METHODS,
    answer,
    answer_everything,
    by_evidence,
    create_planted_study,
    follow_link,
    go_to_main_part,
    link,
    protocol,
    read_colored_words,
    step,
)
from sites import csrf, stranger

PROTOCOLS = sorted((Path(__file__).parents[2] / "papers" / "studies" / "people").glob("*.yaml"))


def people(made):
    with made.application.storage.read_session() as session:
        return list(session.scalars(select(Annotator).order_by(Annotator.id)))


def rows(made, table):
    with made.application.storage.read_session() as session:
        return list(session.scalars(select(table).order_by(table.id)))


@pytest.fixture
def study(full_site):
    """A site with the study of the protocol."""
    create_planted_study(full_site, protocol())
    return full_site


def test_an_annotator_gets_from_the_link_to_the_completion_code(study):
    client, page = follow_link(study, 1)
    assert "We study explanations." in page.text
    assert digest_protocol(protocol()) in page.text
    assert "all statements have to be ticked" in step(client, "consent", agree=["0"]).text
    assert "How good is your English?" in step(client, "consent", agree=["0", "1"]).text
    assert "an answer is needed" in step(client, "screening").text
    page = step(client, "screening", english="0")
    assert "Marked words say why." in page.text
    page = step(client, "instructions")
    assert "Practice 1 of 1" in page.text
    page = answer(client, page)
    assert "That is correct." in page.text
    assert "The word dull says why." in page.text
    page = client.get("/annotate")
    assert "What is rank 1?" in page.text
    assert "try once more" in step(client, "comprehension", q0="0").text
    page = step(client, "comprehension", q0="1")
    assert "Example 1 of 5" in page.text
    assert not any(method in page.text for method in (*METHODS, "planted", "decoy"))
    assert "Some questions at the end" in answer_all(client, page).text
    assert "an answer is needed" in step(client, "questionnaire").text
    page = step(client, "questionnaire", **{"trust-1": "5", "trust-2": "1"})
    assert "Thank you for taking part." in page.text
    assert "C123" in page.text
    assert "https://app.prolific.com/submissions/complete?cc=C123" in page.text
    (person,) = people(study)
    assert (person.status, person.source["SESSION_ID"], person.slot) == ("complete", "s1", 0)
    kept = {row.name: row.content for row in rows(study, AnnotatorStep)}
    assert kept["questionnaire"] == {"trust": [5, 1], "comment": None}
    with study.application.storage.read_session() as session:
        said = load_answers(session, find_project(session, "films"))
    assert len(said) == 4  # neither the training nor the check is an answer of the study
    assert all(each.content["ranks"] == dict(zip(METHODS, (1, 2, 3), strict=True)) for each in said)
    assert {each.content["confidence"] for each in said} == {4}


def answer_all(client, page):
    while "explanation-A" in page.text:
        page = answer(client, page)
    return page


def test_training_gives_feedback_and_later_stages_are_locked(study):
    client, _ = follow_link(study, 1)
    assert client.get("/annotate/1").url.path == "/annotate"
    step(client, "consent", agree=["0", "1"])
    assert "About you" in step(client, "questionnaire", **{"trust-1": "5", "trust-2": "1"}).text
    step(client, "screening", english="0")
    page = answer(client, step(client, "instructions"), ranks=2)
    assert "not the expected answer" in page.text
    assert "What is rank 1?" in client.get("/annotate").text
    assert [row.name for row in rows(study, AnnotatorStep)] == ["consent", "screening", "instructions"]


def test_screened_out_and_failed_annotators_see_the_end_page(study):
    client, _ = follow_link(study, 1)
    step(client, "consent", agree=["0", "1"])
    assert "S456" in step(client, "screening", english="2").text
    client, _ = follow_link(study, 2)
    go_to_main_part(client, english="1")
    client, _ = follow_link(study, 3)
    step(client, "consent", agree=["0", "1"])
    assert "enough participants like you" in step(client, "screening", english="1").text  # the quota is full
    client, _ = follow_link(study, 4)
    for name, fields in (("consent", {"agree": ["0", "1"]}), ("screening", {"english": "0"}), ("instructions", {})):
        page = step(client, name, **fields)
    answer(client, page)
    step(client, "comprehension", q0="0")
    assert "were not answered as expected" in step(client, "comprehension", q0="0").text
    assert [person.status for person in people(study)] == ["screened out", "", "screened out", "failed"]


def test_links_need_platform_parameters_and_a_person_takes_part_once(study, monkeypatch):
    client = stranger(study)
    assert "PROLIFIC_PID, STUDY_ID, SESSION_ID" in client.get("/take/films?PROLIFIC_PID=p1").text
    client, _ = follow_link(study, 1)
    go_to_main_part(client)
    assert client.get(link(1)).url.path == "/annotate/1"  # the same device goes on
    elsewhere, page = follow_link(study, 1)
    assert "Example 1 of 5" in page.text  # another one, with the same parameters, too
    later = utc_now() + REPLACED_TOKEN_TIME + timedelta(seconds=1)
    monkeypatch.setattr("expound_people.projects.utc_now", lambda: later)
    assert client.get("/annotate").status_code == 403
    _, page = follow_link(study, 1, session="another")
    assert "already taken part" in page.text
    assert len(people(study)) == 1
    assert elsewhere.post(link(2), data={"csrf": "wrong"}).status_code == 403


def test_admission_is_limited_and_places_of_people_who_leave_are_reused(study):
    for number in range(5):  # 3 for each of 6 examples, 4 a person
        follow_link(study, number)
    _, page = follow_link(study, 5)
    assert "enough participants" in page.text
    client = follow_link(study, 2)[0]
    client.post("/annotate/withdraw", data={"csrf": csrf(client.get("/annotate"))})
    _, page = follow_link(study, 7)
    assert "We study explanations." in page.text
    assert sorted(person.slot for person in people(study) if person.slot is not None) == [0, 1, 2, 3, 4]
    with study.application.storage.read_session() as session:
        main = {item.id for item in find_project(session, "films").items}
        had = [item for person in people(study) for item in person.items or () if item in main]
    assert {had.count(item) for item in main} == {3, 4}
    assert all(len(person.items) == 5 for person in people(study) if person.items)


def test_withdrawal_deletes_answers_and_identity(study):
    client, _ = follow_link(study, 1)
    go_to_main_part(client)
    answer(client, client.get("/annotate"))
    page = client.post("/annotate/withdraw", data={"csrf": csrf(client.get("/annotate"))})
    assert "All your answers are deleted" in page.text
    assert (rows(study, AnnotatorAnswer), rows(study, AnnotatorStep)) == ([], [])
    (person,) = people(study)
    assert (person.name, person.person, person.source, person.items) == ("withdrawn 1", None, None, None)
    assert client.get("/annotate").status_code == 403


def test_known_examples_have_one_planted_explanation_and_different_decoys():
    for part in (
        KnownPart(text="the plot is dull and long", evidence=["dull"], prediction="bad"),
        KnownPart(square=(2, 3), grid=(3, 4), prediction="red"),
    ):
        item = make_known_item(part, 5, "check", parse_protocol(protocol()))
        scores = {each.method: restore_explanation(each).scores for each in item.explanations}
        assert set(scores) == {"planted", "decoy 1", "decoy 2"}
        assert len({tuple(each.ravel()) for each in scores.values()}) == 3
        assert {each.sum() for each in scores.values()} == {1}
        assert scores["planted"].argmax() == (3 if part.text else 1 * 4 + 2)
        assert has_passed("rank", item, {"ranks": {"planted": 1, "decoy 1": 2, "decoy 2": 2}})
        assert not has_passed("rank", item, {"ranks": {"planted": 1, "decoy 1": 1, "decoy 2": 2}})
        assert [has_passed("simulate", item, {"guess": guess}) for guess in (part.prediction, "other")] == [True, False]
    part = KnownPart(text="a dull film", evidence=["dull"], prediction="bad")
    marks = make_known_item(part, 0, "check", parse_protocol(protocol("highlight")))
    answers = ([[0, 2, 6]], [[0, 0, 11]], [[0, 0, 1]], [])
    assert [has_passed("highlight", marks, {"marks": each}) for each in answers] == [True, True, False, False]


def test_the_time_limit_ends_participation(study):
    client, _ = follow_link(study, 1)
    with study.application.storage.write_session() as session:
        session.scalar(select(Annotator)).created -= timedelta(minutes=61)
    assert "time limit of this study has passed" in client.get("/annotate").text
    assert "time limit of this study has passed" in step(client, "consent", agree=["0", "1"]).text
    assert rows(study, AnnotatorStep) == []


def test_mturk_previews_show_the_page_without_a_begin_button(full_site):
    create_planted_study(full_site, protocol(recruiting="{platform: mturk}"))
    client, address = stranger(full_site), "/take/films?workerId=w&hitId=h&assignmentId="
    page = client.get(f"{address}ASSIGNMENT_ID_NOT_AVAILABLE")
    assert "This is a preview" in page.text
    assert "<form" not in page.text
    page = client.get(f"{address}a1")
    assert "We study" in client.post(f"{address}a1", data={"csrf": csrf(page)}).text


def test_a_study_stops_when_its_intervals_are_narrow(full_site):
    create_planted_study(
        full_site, protocol(recruiting="{platform: prolific}", stop="{width: 100, least: 3}", main="{items: 2}")
    )
    for number in range(3):
        client, _ = follow_link(full_site, number)
        go_to_main_part(client)
        page = client.get("/annotate")
        while "explanation-A" in page.text:  # each person puts other methods first
            order = sorted(read_colored_words(page))
            turned = {letter: ["word"] * (1 + (place + number) % 3) for place, letter in enumerate(order)}
            page = answer(client, page, lambda _, turned=turned: turned)
        step(client, "questionnaire", **{"trust-1": "5", "trust-2": "1"})
    with full_site.application.storage.read_session() as session:
        assert find_widest_interval(session, find_project(session, "films")) < 100
    assert "enough participants" in follow_link(full_site, 3)[1].text


def test_pages_are_german_if_the_protocol_is(full_site):
    create_planted_study(full_site, protocol(language="de"))
    client, page = follow_link(full_site, 1)
    assert '<html lang="de">' in page.text
    assert "Ich willige ein und nehme teil" in page.text
    assert "jede Aussage muss angekreuzt sein" in step(client, "consent").text
    step(client, "consent", agree=["0", "1"])
    assert "How good is your English?: eine Antwort wird gebraucht" in step(client, "screening").text
    page = go_to_main_part(client)
    assert "Beispiel 1 von 5" in page.text
    assert "Rang von A" in page.text
    sent = {"csrf": csrf(page), "phase": "", "rank-A": "1", "rank-B": "9"}
    assert "Erklärung B braucht einen Rang von 1 bis 3" in client.post("/annotate/1", data=sent).text
    assert "Explanation" not in page.text


def test_the_analysis_finds_a_planted_order(study):
    for number in range(3):
        client, _ = follow_link(study, number)
        go_to_main_part(client)
        assert "C123" in answer_everything(client).text
    with study.application.storage.read_session() as session:
        found = compute_findings(session, find_project(session, "films"))
    assert [rating.method for rating in found.ratings] == list(METHODS)
    assert (found.answers, found.alpha) == (12, pytest.approx(1))


def test_errors_of_a_protocol_name_the_problem_and_the_line():
    text = protocol()
    for old, new, told in (
        ("language: en", "languages: en", "protocol:4: languages: Extra inputs"),
        (
            "kind: rank",
            "kind: sing",
            "protocol:3: kind: Input should be 'rank', 'highlight', 'simulate' or 'counterfactual'",
        ),
        ("evidence: [dull]", "evidence: [sad]", "expected evidence that is a part of the text"),
        ("answer: the best", "answer: neither", "the answer is not one of the choices"),
        ("{basic: 1}", "{perfect: 1}", "quotas: english is no screening question with these choices"),
        ("name: comment", "name: trust", "two questions have the same name"),
        ('redirect: "https:', 'redirect: "javascript:', "String should match pattern"),
        ("accept: [fluent, basic]", "accept: [good]", "'accept' names choices"),
    ):
        assert old in text
        with pytest.raises(ExpoundError) as error:
            parse_protocol(text.replace(old, new))
        assert told in str(error.value)
    assert by_evidence({"A": ["great"], "B": ["x", "y"]}) == {"A": 1, "B": 2}


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_the_printed_schema_of_protocols_holds_for_every_one(path, capsys):
    assert main(["people", "schema"]) == 0
    schema = Draft202012Validator(json.loads(capsys.readouterr().out))
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert list(schema.iter_errors(content)) == []
    assert list(schema.iter_errors(content | {"titel": "a slip"}))
    assert read_protocol(path)[0].title == content["title"]
