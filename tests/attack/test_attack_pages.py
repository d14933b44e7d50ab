"""Slow clients, guessed tokens, planted cookies, other people's pages and old forms, on both kinds of database."""

from __future__ import annotations

import socket
import statistics
import time
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from attacked import record_outcomes, scale_count
from expound.serve import Limits
from expound.serve.authentication import make_admin_cookie_name
from expound.serve.settings import TimeoutProtocol
from expound_people.projects import digest_token, find_project
from expound_people.results import load_answers
from expound_people.services import ANNOTATOR_COOKIE
from expound_people.storage import Storage
from expound_people.tables import Annotator
from serving import listening
from sites import HERE, TEXTS, TOKEN, admin, csrf, stranger
from studies import annotator, letters, project, rank, site

SLOW = {
    "nothing": b"",
    "a first line": b"GET /annotate HTTP/1.1\r\n",
    "a head without end": b"GET /annotate HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ",
    "a body that never comes": b"POST /sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n",
    "a second request": b"GET /favicon.ico HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /",
}


@pytest.fixture
def study_site(url, tmp_path):
    """A site with its studies in the database of `url`."""
    # Thousands of wrong tokens come from one address here.
    limits = Limits(wrong_tokens=1 << 30)
    found = site(tmp_path, with_model=False, database=Storage(url), limits=limits)
    yield found
    found.application.storage.close()


@pytest.fixture
def kind(url):
    return url.partition(":")[0]


def measure_page_time(address, token):
    """The seconds that a page of an annotator takes."""
    asked = time.monotonic()
    assert httpx.get(f"{address}/join/{token}", timeout=30).status_code == 200
    time.sleep(0.05)
    return time.monotonic() - asked - 0.05


@pytest.mark.parametrize("how", SLOW)
def test_slow_clients_keep_nobody_waiting_and_are_let_go(how, tmp_path, monkeypatch):
    (
        monkeypatch.setattr(TimeoutProtocol, "header_timeout", 2.0),
        monkeypatch.setattr(TimeoutProtocol, "body_timeout", 3.0),
    )
    study_site = site(tmp_path, with_model=False)
    tokens = project(study_site)
    with record_outcomes("slow clients", how) as counts, listening(study_site) as address:
        where = (urlsplit(address).hostname, urlsplit(address).port)
        alone = statistics.median(measure_page_time(address, tokens["Ada"]) for _ in range(7))
        clients = [socket.create_connection(where) for _ in range(scale_count(500))]
        for each in clients:
            each.sendall(SLOW[how])
        waits, began = [], time.monotonic()
        while time.monotonic() - began < 1.5:
            for each in clients[:20]:
                each.sendall(b"a" if SLOW[how] else b"")
            waits.append(measure_page_time(address, tokens["Ada"]))
        assert statistics.median(waits) < 0.1 + 3 * alone
        for each in clients:
            each.settimeout(max(0.1, 20 + began - time.monotonic()))
            with each:
                while receive_bytes(each):
                    pass  # a TimeoutError here: the server still waits
        counts["cases"] = len(clients)
    study_site.application.storage.close()


def receive_bytes(client):
    """The bytes received; empty once the server has closed or reset the connection."""
    try:
        return client.recv(1 << 16)
    except ConnectionResetError:
        return b""


def test_a_request_in_time_and_a_second_one_on_its_connection_are_answered(study_site, monkeypatch):
    monkeypatch.setattr(TimeoutProtocol, "header_timeout", 0.5)
    with listening(study_site) as address, httpx.Client(base_url=address) as client:
        for _ in range(4):
            assert client.get("/sign-in").status_code == 200
            time.sleep(0.3)


def overlap(one, other):
    """The share of pairs with a larger first value: 0.5 for equal distributions."""
    return float((np.subtract.outer(one, other) > 0).mean())


def test_the_time_of_a_refusal_tells_nothing_about_the_token(study_site, kind):
    client, count = stranger(study_site), scale_count(2000)
    guesses = [TOKEN[:-1] + "x", "x" * len(TOKEN)]
    seconds = [[], []]
    with record_outcomes("token timing", kind) as counts:
        for number in range(2 * count):
            began = time.perf_counter()
            assert client.get("/sign-in", params={"token": guesses[number % 2]}).status_code == 403
            seconds[number % 2].append(time.perf_counter() - began)
        counts |= {"cases": 2 * count}
        assert abs(overlap(*seconds) - 0.5) < 6 / (6 * count) ** 0.5


def test_a_cookie_that_somebody_planted_opens_nothing_after_signing_in(study_site, kind):
    tokens = project(study_site, people=["Ada", "Eve"])
    with record_outcomes("session fixation", kind) as counts:
        planted = {make_admin_cookie_name(TOKEN): "planted", ANNOTATOR_COOKIE: tokens["Eve"], "session": "planted"}
        victim = stranger(study_site)
        victim.cookies.update(planted)
        assert victim.get("/studies", follow_redirects=False).status_code == 303
        victim.get("/sign-in", params={"token": TOKEN})
        assert victim.cookies.get(make_admin_cookie_name(TOKEN), domain="127.0.0.1") != "planted"
        attacker = stranger(study_site)
        attacker.cookies.update(planted)
        assert attacker.get("/studies", follow_redirects=False).status_code == 303
        page = victim.get(f"/join/{tokens['Ada']}")
        victim.cookies.delete(ANNOTATOR_COOKIE)
        assert victim.post(f"/join/{tokens['Ada']}", data={"csrf": csrf(page)}).status_code == 200
        assert victim.cookies[ANNOTATOR_COOKIE] == tokens["Ada"]
        forged = {"csrf": csrf(stranger(study_site).get(f"/join/{tokens['Eve']}"))}
        foreign = {"origin": "https://evil.example"}
        assert victim.post(f"/join/{tokens['Eve']}", data=forged, headers=foreign).status_code == 403
        assert victim.cookies[ANNOTATOR_COOKIE] == tokens["Ada"]
        counts |= {"cases": 5}


def load_stored_answers(study_site, name="first"):
    with study_site.application.storage.read_session() as session:
        return [
            (a.annotator.name, a.item.number, a.revision, a.content)
            for a in load_answers(session, find_project(session, name))
        ]


def test_no_annotator_sees_or_changes_what_another_answered(study_site, kind):
    tokens = project(study_site, kind="simulate", people=["Ada", "Ben"])
    other = project(study_site, "second", kind="rank", people=["Cora"])
    with record_outcomes("one annotator reads another's", kind) as counts:
        ada, ben, cora = (annotator(study_site, token) for token in (tokens["Ada"], tokens["Ben"], other["Cora"]))
        unanswered = {place: ben.get(f"/annotate/{place}").text for place in range(1, len(TEXTS) + 1)}
        for place in unanswered:
            for phase in ("before", "after"):
                form = {"csrf": csrf(ada.get(f"/annotate/{place}")), "phase": phase, "guess": "1", "seconds": "1"}
                assert ada.post(f"/annotate/{place}", data=form).status_code == 200
        theirs = load_stored_answers(study_site)
        assert {name for name, *_ in theirs} == {"Ada"}
        for place, before in unanswered.items():
            assert ben.get(f"/annotate/{place}").text == before
            assert "Ada" not in cora.get(f"/annotate/{place}").text
            for thief in (ben, cora, stranger(study_site)):
                used = {"csrf": csrf(ada.get(f"/annotate/{place}")), "phase": "before", "guess": "2"}
                assert thief.post(f"/annotate/{place}", data=used).status_code == 403
                counts["cases"] += 1
            counts["cases"] += 2
        for address in (
            "/studies",
            "/studies/first/results",
            "/studies/first/export/csv",
            "/studies/first/export/json",
        ):
            assert ben.get(address, follow_redirects=False).status_code == 303
            counts["cases"] += 1
        for place in ("0", "-1", "5", "999999999999", "1%00", "../1"):
            assert ben.get(f"/annotate/{place}").status_code in (400, 403, 404, 422)
            counts["cases"] += 1
        assert load_stored_answers(study_site) == theirs


def test_a_form_that_is_sent_again_is_one_answer_and_dies_with_the_invitation(study_site, kind):
    tokens = project(study_site)
    with record_outcomes("replay", kind) as counts:
        ada = annotator(study_site, tokens["Ada"])
        names = letters(ada.get("/annotate/1"))
        rank(ada, 1, dict.fromkeys(names, 1))
        form = {"csrf": csrf(ada.get("/annotate/1")), "phase": ""} | {f"rank-{name}": "1" for name in names}
        for number in range(scale_count(100)):
            assert ada.post("/annotate/1", data=form, follow_redirects=False).status_code == 303
            (answer,) = load_stored_answers(study_site)
            assert (answer[0], answer[2]) == ("Ada", number + 2)
            counts["cases"] += 1
        stolen = stranger(study_site)
        assert stolen.post("/annotate/1", data=form).status_code == 403
        with study_site.application.storage.read_session() as session:
            number = session.scalar(select(Annotator.id).where(Annotator.token_digest == digest_token(tokens["Ada"])))
        chief = admin(study_site)
        revoked = {"csrf": csrf(chief.get("/studies/first"))}
        assert chief.post(f"/studies/first/invitations/{number}/revoke", data=revoked).status_code == 200
        before = load_stored_answers(study_site)
        stolen.cookies.set(ANNOTATOR_COOKIE, tokens["Ada"])
        for client in (ada, stolen):
            assert client.post("/annotate/1", data=form, headers={"origin": HERE}).status_code == 403
            counts["cases"] += 1
        assert load_stored_answers(study_site) == before
