"""Protocols that no participant could take, double clicks, characters that databases refuse, and formulas."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from html import unescape

import pytest
import yaml

from attacked import record_outcomes, scale_count
from expound import ExpoundError
from expound.cli import main
from expound_people.projects import REPLACED_TOKEN_TIME, find_project
from expound_people.protocol.file import BYTES, parse_protocol
from expound_people.protocol.rehearsal import rehearse
from expound_people.services import ANNOTATOR_COOKIE
from expound_people.storage import Storage
from expound_people.tables import Annotator, AnnotatorAnswer, AnnotatorStep, ReplacedToken, utc_now
from participants import answer, create_planted_study, follow_link, link, protocol, step
from sites import admin, csrf, stranger
from studies import annotator, letters, project, site

pytestmark = pytest.mark.attack
HUGE = 99_999_999_999_999
NUMBERS = {
    "seed": [-1, 2**31, 2**63, 10**400],
    "main": [f"{{items: {HUGE}}}", "{overlap: 0}", f"{{screen: {HUGE}}}"],
    "change": [f"{{words: {HUGE}}}", f"{{tries: {HUGE}}}"],
    "recruiting": [f"{{minutes: {HUGE}}}", "{minutes: -1}", f"{{people: {10**30}}}", "{quotas: {english: {basic: 0}}}"],
    "stop": ["{width: 1.0e+300}", "{width: .inf}", f"{{width: 1, least: {HUGE}}}"],
    "source": [f"{{limit: {HUGE}}}"],
    "attention": [f"{{allowed: {HUGE}}}", "{fastest: 1.0e+300}"],
    "training": [
        "[{square: [1, 1], grid: [3000, 3000], prediction: good}]",
        "[{square: [1, 1], grid: [51, 1], prediction: good}]",
    ],
}


@pytest.fixture
def study_site(url, tmp_path):
    """A site with its studies in the database of `url`."""
    found = site(tmp_path, with_model=False, database=Storage(url))
    yield found
    found.application.storage.close()


def test_numbers_of_a_protocol_are_bounded_where_it_is_read():
    for part, values in NUMBERS.items():
        with record_outcomes("hostile protocols", part) as counts:
            for value in values:
                with pytest.raises(ExpoundError, match=rf"protocol:[0-9]+: {part}") as error:
                    parse_protocol(protocol(**{part: str(value)}))
                assert len(str(error.value)) < 400
                counts.update(cases=1, refused=1)


def test_texts_that_cannot_be_stored_and_protocols_that_are_too_long_are_refused_before_they_are_parsed():
    for text in ('"a\\0b"', '"a\\ud800b"'):
        with pytest.raises(ExpoundError, match=r"protocol:[0-9]+: a text has a character"):
            parse_protocol(protocol(title=text))
    began = time.process_time()
    with pytest.raises(ExpoundError, match="256 KiB"):
        parse_protocol(protocol() + "#" * BYTES)
    assert time.process_time() - began < 0.2


def test_a_protocol_is_rehearsed_and_the_rehearsal_leaves_nothing(study_site):
    for kind in ("rank", "highlight", "simulate"):
        create_planted_study(study_site, protocol(kind=kind), kind)
        with study_site.application.storage.write_session() as session:
            rehearse(session, find_project(session, kind))
    with study_site.application.storage.read_session() as session:
        for table in (Annotator, AnnotatorAnswer, AnnotatorStep, ReplacedToken):
            assert session.query(table).count() == 0
    assert "We study explanations." in follow_link(study_site, 1, study="rank")[1].text


def test_a_protocol_that_fails_for_every_participant_is_not_frozen(tmp_path, monkeypatch):
    study_site = site(tmp_path, with_model=False)
    create_planted_study(study_site, protocol())
    monkeypatch.setattr("expound_people.protocol.admission._assign_items", lambda *_: [10**6])
    with (
        pytest.raises(ExpoundError, match="nobody could take part by this protocol"),
        study_site.application.storage.write_session() as session,
    ):
        rehearse(session, find_project(session, "films"))


def test_both_requests_of_a_double_click_leave_a_cookie_that_is_valid_for_a_minute(study_site, monkeypatch):
    create_planted_study(study_site, protocol(recruiting="{platform: prolific}", main="{items: 4, screen: 3}"))
    cookies = []
    with record_outcomes("double clicks on begin", study_site.application.storage.engine.name) as counts:
        for number in range(scale_count(200)):
            client = stranger(study_site)
            page = client.get(link(number))
            form = {"csrf": csrf(page)}
            with ThreadPoolExecutor(2) as windows:
                # Both are sent before either has answered, so neither brings a cookie.
                clients = [stranger(study_site) for _ in range(2)]
                sent = [windows.submit(each.post, link(number), data=form, follow_redirects=False) for each in clients]
                answers = [each.result() for each in sent]
            for answer in answers:
                assert answer.status_code == 303
                cookies.append(answer.cookies[ANNOTATOR_COOKIE])
                client.cookies.set(ANNOTATOR_COOKIE, cookies[-1])
                assert client.get("/annotate").status_code == 200
                client.cookies.clear()
            counts["cases"] += 1
    # Afterwards one cookie of each person is valid.
    later = utc_now() + REPLACED_TOKEN_TIME + timedelta(seconds=1)
    monkeypatch.setattr("expound_people.projects.utc_now", lambda: later)
    valid = 0
    for cookie in cookies:
        client = stranger(study_site)
        client.cookies.set(ANNOTATOR_COOKIE, cookie)
        valid += client.get("/annotate").status_code == 200
    assert 2 * valid == len(cookies)


def test_a_withdrawal_ends_replaced_tokens_at_once(tmp_path):
    study_site = site(tmp_path, with_model=False)
    create_planted_study(study_site, protocol())
    first, _ = follow_link(study_site, 1)
    second, page = follow_link(study_site, 1)
    assert first.get("/annotate").status_code == 200
    assert second.post("/annotate/withdraw", data={"csrf": csrf(page)}).status_code == 200
    assert first.get("/annotate").status_code == 403


def test_nul_is_refused_in_paths_queries_forms_and_imports(study_site):
    tokens = project(study_site)
    create_planted_study(study_site, protocol())
    chief, ada = admin(study_site), annotator(study_site, tokens["Ada"])
    with record_outcomes("NUL", study_site.application.storage.engine.name) as counts:
        for address in ("/take/%00", "/join/%00", "/studies/a%00b", "/take/films?PROLIFIC_PID=%00", "/?%00=a"):
            assert chief.get(address).status_code == 400, address
            counts.update(cases=1)
        form = {"csrf": csrf(ada.get("/annotate/1")), "phase": ""} | dict.fromkeys(
            [f"rank-{letter}" for letter in letters(ada.get("/annotate/1"))], "1"
        )
        assert ada.post("/annotate/1", data=form | {"seconds": "\0"}).status_code == 400
        page = chief.get("/studies/first")
        invited = {"csrf": csrf(page), "names": "Eve\0"}
        assert chief.post("/studies/first/invitations", data=invited).status_code == 400
        for bad in ("\0", "\ud800"):
            task = {"data": {"text": f"a {bad} film"}, "annotations": []}
            sent = chief.post(
                "/studies/import",
                data={"csrf": csrf(chief.get("/studies")), "name": "marks", "format": "label-studio"},
                files={"file": ("tasks.json", json.dumps([task]).encode(), "application/json")},
            )
            assert sent.status_code == 422
            counts.update(cases=1)


HOSTILE = "{{7*7}}${7*7}{0.__class__}%(x)s<script>alert(1)</script>"
FREE = {"title", "question", "text", "agree", "choices", "accept", "answer", "statements", "ends", "thanks"}
FREE |= {"feedback", "code"}
"""Keys of a protocol whose texts are shown to people."""


def make_hostile(value, key=""):
    """The protocol with a hostile end of each text that people read; known examples keep their evidence."""
    if isinstance(value, dict) and "evidence" not in value:
        return {name: make_hostile(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [make_hostile(inner, key) for inner in value]
    return f"{value} {HOSTILE}" if isinstance(value, str) and key in FREE else value


def require_plain(page):
    assert page.status_code == 200
    assert "<script>alert(1)" not in page.text
    assert not re.search(r"49\$|}}49|class .str", page.text)
    return unescape(page.text).count(HOSTILE)


def test_templates_scripts_and_formulas_in_every_field_stay_text(tmp_path):
    study_site = site(tmp_path, with_model=False)
    plan = make_hostile(yaml.safe_load(protocol(recruiting="{platform: prolific, complete: {code: C1}}")))
    plan["instructions"]["text"] = [HOSTILE]
    create_planted_study(study_site, yaml.safe_dump(plan, allow_unicode=True))
    with record_outcomes("templates in fields", "pages and files of a study") as counts:
        client, page = follow_link(study_site, 1)
        pages = {"start": stranger(study_site).get(link(2)), "consent": page}
        for name, fields in (("consent", {"agree": ["0", "1"]}), ("screening", {"english": "0"}), ("instructions", {})):
            pages[f"after {name}"] = step(client, name, **fields)
        answer(client, pages["after instructions"], lambda colored: colored)
        pages["comprehension"] = client.get("/annotate")
        pages["example"] = step(client, "comprehension", q0="1")
        while "explanation-A" in client.get("/annotate").text:
            answer(client, client.get("/annotate"))
        pages["questionnaire"] = client.get("/annotate")
        given = {"trust-1": "5", "trust-2": "1", "comment": f"=1+1{HOSTILE}"}
        pages["end"] = step(client, "questionnaire", **given)
        chief = admin(study_site)
        invited = {"csrf": csrf(chief.get("/studies/films")), "names": f"{HOSTILE}\n＝1+1\n＠SUM(1)\n＋1\n－1\n=1+1"}
        pages["invitations"] = chief.post("/studies/films/invitations", data=invited)
        pages["study"] = chief.get("/studies/films")
        for name, shown in pages.items():
            assert require_plain(shown) > (name == "example") - 1, name
            counts.update(cases=1)
        require_plain(chief.get("/studies/films/results"))
        exported = chief.get("/studies/films/export/people.csv").text
        rows = list(csv.DictReader(io.StringIO(exported)))
        assert rows[0]["comment"] == f"'=1+1{HOSTILE}"
        assert [row["annotator"] for row in rows[1:]] == [HOSTILE, "'＝1+1", "'＠SUM(1)", "'＋1", "'－1", "'=1+1"]
        for file in ("answers.csv", "methods.md", "results.json", "raw.json", "figure.svg"):
            content = chief.get(f"/studies/films/export/{file}").text
            assert not re.search(r"49\$|}}49|class .str", content)
            counts.update(cases=1)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://user:secret@host:port/name",
        "postgresql://user@127.0.0.1:1/name?password=secret",
        "postgresql://user:secret@127.0.0.1:1/name?connect_timeout=1&sslpassword=secret",
        "sqlite:////proc/none/studies.db?password=secret",
        "sqlite:///a\0b.db?password=secret",
        "sqlite:///a\ud800/b.db",
        "nonsense://user:secret@host/name",
    ],
    ids=ascii,
)
def test_a_storage_that_cannot_be_opened_is_told_in_one_line_without_its_password(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExpoundError) as error:
        Storage(address)
    assert "secret" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("seed", [-1, 2**31, 2**63, 2**200])
def test_a_seed_that_no_database_stores_is_told_in_one_line(seed, comparison, tmp_path, capsys):
    words = ["people", "create", "films", "--result", str(comparison), "--seed", str(seed)]
    assert main([*words, "--storage", f"sqlite:///{tmp_path}/studies.db"]) == 2
    assert "seed" in capsys.readouterr().err


def test_names_with_characters_that_cannot_be_stored_are_told_in_one_line(comparison, tmp_path, capsys):
    for name in ("a\ud800", "a\0b"):
        words = ["people", "create", name, "--result", str(comparison)]
        assert main([*words, "--storage", f"sqlite:///{tmp_path}/studies.db"]) == 2
        assert "expected a name of letters" in capsys.readouterr().err
