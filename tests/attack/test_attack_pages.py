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

from attacked import noted, times
from exegete.web.authentication import ANNOTATOR_COOKIE, make_admin_cookie_name
from exegete.web.human_study.projects import digest_token, find_project
from exegete.web.human_study.results import load_answers
from exegete.web.human_study.storage import Storage
from exegete.web.human_study.tables import Annotator
from exegete.web.timeouts import TimeoutProtocol
from serving import listening
from sites import HERE, TEXTS, TOKEN, admin, annotator, csrf, letters, project, rank, site, stranger

SLOW = {
    "nothing": b"",
    "a first line": b"GET /annotate HTTP/1.1\r\n",
    "a head without end": b"GET /annotate HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ",
    "a body that never comes": b"POST /sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n",
    "a second request": b"GET /favicon.ico HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /",
}


@pytest.fixture
def made(url, tmp_path):
    """A site whose studies are in that database."""
    found = site(tmp_path, with_model=False, storage=Storage(url))
    yield found
    found.studies.close()


@pytest.fixture
def kind(url):
    return url.partition(":")[0]


def wait_for(address, token):
    """How long a page of an annotator takes."""
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
    made = site(tmp_path, with_model=False)
    tokens = project(made)
    with noted("slow clients", how) as seen, listening(made) as address:
        where = (urlsplit(address).hostname, urlsplit(address).port)
        alone = statistics.median(wait_for(address, tokens["Ada"]) for _ in range(7))
        clients = [socket.create_connection(where) for _ in range(times(500))]
        for each in clients:
            each.sendall(SLOW[how])
        waits, began = [], time.monotonic()
        while time.monotonic() - began < 1.5:
            for each in clients[:20]:
                each.sendall(b"a" if SLOW[how] else b"")
            waits.append(wait_for(address, tokens["Ada"]))
        assert statistics.median(waits) < 0.1 + 3 * alone
        for each in clients:
            each.settimeout(max(0.1, 20 + began - time.monotonic()))
            with each:
                while received(each):
                    pass  # a TimeoutError here: the server still waits
        seen["cases"] = len(clients)
    made.studies.close()


def received(client):
    """The bytes received; empty once the server has closed or reset the connection."""
    try:
        return client.recv(1 << 16)
    except ConnectionResetError:
        return b""


def test_a_request_in_time_and_a_second_one_on_its_connection_are_answered(made, monkeypatch):
    monkeypatch.setattr(TimeoutProtocol, "header_timeout", 0.5)
    with listening(made) as address, httpx.Client(base_url=address) as client:
        for _ in range(4):
            assert client.get("/sign-in").status_code == 200
            time.sleep(0.3)


def overlap(one, other):
    """How often a value of the first is above one of the second: 0.5 when they are alike."""
    return float((np.subtract.outer(one, other) > 0).mean())


def test_the_time_of_a_refusal_tells_nothing_about_the_token(made, kind):
    client, count = stranger(made), times(2000)
    guesses = [TOKEN[:-1] + "x", "x" * len(TOKEN)]
    seconds = [[], []]
    with noted("token timing", kind) as seen:
        for number in range(2 * count):
            began = time.perf_counter()
            assert client.get("/sign-in", params={"token": guesses[number % 2]}).status_code == 403
            seconds[number % 2].append(time.perf_counter() - began)
        seen |= {"cases": 2 * count}
        assert abs(overlap(*seconds) - 0.5) < 6 / (6 * count) ** 0.5


def test_a_cookie_that_somebody_planted_opens_nothing_after_signing_in(made, kind):
    tokens = project(made, people=["Ada", "Eve"])
    with noted("session fixation", kind) as seen:
        planted = {make_admin_cookie_name(TOKEN): "planted", ANNOTATOR_COOKIE: tokens["Eve"], "session": "planted"}
        victim = stranger(made)
        victim.cookies.update(planted)
        assert victim.get("/studies", follow_redirects=False).status_code == 303
        victim.get("/sign-in", params={"token": TOKEN})
        assert victim.cookies.get(make_admin_cookie_name(TOKEN), domain="127.0.0.1") != "planted"
        attacker = stranger(made)
        attacker.cookies.update(planted)
        assert attacker.get("/studies", follow_redirects=False).status_code == 303
        page = victim.get(f"/join/{tokens['Ada']}")
        victim.cookies.delete(ANNOTATOR_COOKIE)
        assert victim.post(f"/join/{tokens['Ada']}", data={"csrf": csrf(page)}).status_code == 200
        assert victim.cookies[ANNOTATOR_COOKIE] == tokens["Ada"]
        forged = {"csrf": csrf(stranger(made).get(f"/join/{tokens['Eve']}"))}
        foreign = {"origin": "https://evil.example"}
        assert victim.post(f"/join/{tokens['Eve']}", data=forged, headers=foreign).status_code == 403
        assert victim.cookies[ANNOTATOR_COOKIE] == tokens["Ada"]
        seen |= {"cases": 5}


def kept(made, name="first"):
    with made.studies.read_session() as session:
        return [
            (a.annotator.name, a.item.number, a.revision, a.content)
            for a in load_answers(session, find_project(session, name))
        ]


def test_no_annotator_sees_or_changes_what_another_answered(made, kind):
    tokens = project(made, kind="simulate", people=["Ada", "Ben"])
    other = project(made, "second", kind="rank", people=["Cora"])
    with noted("one annotator reads another's", kind) as seen:
        ada, ben, cora = (annotator(made, token) for token in (tokens["Ada"], tokens["Ben"], other["Cora"]))
        unanswered = {place: ben.get(f"/annotate/{place}").text for place in range(1, len(TEXTS) + 1)}
        for place in unanswered:
            for phase in ("before", "after"):
                form = {"csrf": csrf(ada.get(f"/annotate/{place}")), "phase": phase, "guess": "1", "seconds": "1"}
                assert ada.post(f"/annotate/{place}", data=form).status_code == 200
        theirs = kept(made)
        assert {name for name, *_ in theirs} == {"Ada"}
        for place, before in unanswered.items():
            assert ben.get(f"/annotate/{place}").text == before
            assert "Ada" not in cora.get(f"/annotate/{place}").text
            for thief in (ben, cora, stranger(made)):
                used = {"csrf": csrf(ada.get(f"/annotate/{place}")), "phase": "before", "guess": "2"}
                assert thief.post(f"/annotate/{place}", data=used).status_code == 403
                seen["cases"] += 1
            seen["cases"] += 2
        for address in (
            "/studies",
            "/studies/first/results",
            "/studies/first/export/csv",
            "/studies/first/export/json",
        ):
            assert ben.get(address, follow_redirects=False).status_code == 303
            seen["cases"] += 1
        for place in ("0", "-1", "5", "999999999999", "1%00", "../1"):
            assert ben.get(f"/annotate/{place}").status_code in (403, 404, 422)
            seen["cases"] += 1
        assert kept(made) == theirs


def test_a_form_that_is_sent_again_is_one_answer_and_dies_with_the_invitation(made, kind):
    tokens = project(made)
    with noted("replay", kind) as seen:
        ada = annotator(made, tokens["Ada"])
        names = letters(ada.get("/annotate/1"))
        rank(ada, 1, dict.fromkeys(names, 1))
        form = {"csrf": csrf(ada.get("/annotate/1")), "phase": ""} | {f"rank-{name}": "1" for name in names}
        for number in range(times(100)):
            assert ada.post("/annotate/1", data=form, follow_redirects=False).status_code == 303
            (answer,) = kept(made)
            assert (answer[0], answer[2]) == ("Ada", number + 2)
            seen["cases"] += 1
        stolen = stranger(made)
        assert stolen.post("/annotate/1", data=form).status_code == 403
        with made.studies.read_session() as session:
            number = session.scalar(select(Annotator.id).where(Annotator.token_digest == digest_token(tokens["Ada"])))
        chief = admin(made)
        revoked = {"csrf": csrf(chief.get("/studies/first"))}
        assert chief.post(f"/studies/first/invitations/{number}/revoke", data=revoked).status_code == 200
        before = kept(made)
        stolen.cookies.set(ANNOTATOR_COOKIE, tokens["Ada"])
        for client in (ada, stolen):
            assert client.post("/annotate/1", data=form, headers={"origin": HERE}).status_code == 403
            seen["cases"] += 1
        assert kept(made) == before
