"""Fifty people at once (eight in `make test`), and a server that is killed: no answer is lost or stored twice."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import httpx
import pytest

import expound
from attacked import LONG, record_outcomes
from databases import Killable
from expound_people.items import make_items
from expound_people.projects import create_project, find_project, invite_annotators
from expound_people.results import load_answers
from expound_people.storage import Storage
from forks import find_free_port
from sites import METHODS, TEXTS, csrf, model

PEOPLE = [f"person {number}" for number in range(50 if LONG else 8)]
DATABASES = ["sqlite", *([pytest.param("postgresql", marks=pytest.mark.postgres)] if LONG else [])]
pytestmark = pytest.mark.parametrize("url", DATABASES, indirect=True)
TWICE = 2
ATTEMPTS = 5000


@pytest.fixture
def study(url):
    """A storage with a study, and its invitations by name."""
    storage = Storage(url)
    items = [(method, item) for method in METHODS for item in expound.attribute(model(), TEXTS, method)]
    with storage.write_session() as session:
        create_project(session, "load", make_items(items))
    with storage.write_session() as session:
        tokens = invite_annotators(session, find_project(session, "load"), PEOPLE)
    storage.close()
    yield storage, tokens
    storage.close()


@pytest.fixture
def server(study, url):
    """A server of that study."""
    port = find_free_port()
    found = Killable(url, port)
    yield found
    found.end()


def ballot(person, place):
    """A ranking by letter that differs from those of other people and other pages."""
    return {f"rank-{letter}": str(1 + (person >> 2 * n) % 4 if n < 3 else place) for n, letter in enumerate("ABCD")}


def join_study(server, token):
    client = httpx.Client(base_url=server.address, headers={"accept": "text/html"}, timeout=60)
    page = client.get(f"/join/{token}")
    form = {"csrf": csrf(page)}
    assert client.post(f"/join/{token}", data=form).status_code == 303
    return client, form


def load_stored_answers(storage):
    """All stored answers: annotator, item, ranks in the order shown, revision."""
    with storage.read_session() as session:
        found = load_answers(session, find_project(session, "load"))
    storage.close()  # a fork would inherit its connections
    return [
        (a.annotator.name, a.item.number, [a.content["ranks"][name] for name in a.content["order"]], a.revision)
        for a in found
    ]


def test_many_people_at_once_lose_nothing_and_double_nothing(study, server):
    storage, tokens = study

    def annotate(person):
        client, form = join_study(server, tokens[PEOPLE[person]])
        with closing(client), ThreadPoolExecutor(TWICE) as windows:
            for place in range(1, len(TEXTS) + 1):
                given = form | {"phase": ""} | ballot(person, place)
                sent = [windows.submit(client.post, f"/annotate/{place}", data=given) for _ in range(TWICE)]
                assert [each.result().status_code for each in sent] == [303] * TWICE

    with ThreadPoolExecutor(len(PEOPLE)) as people:
        list(people.map(annotate, range(len(PEOPLE))))
    found = load_stored_answers(storage)
    assert len(found) == len({(name, item) for name, item, _, _ in found}) == len(PEOPLE) * len(TEXTS)
    assert {revision for *_, revision in found} == {TWICE}
    expected = {
        (name, tuple(map(int, ballot(person, place).values())))
        for person, name in enumerate(PEOPLE)
        for place in range(1, len(TEXTS) + 1)
    }
    assert {(name, tuple(ranks)) for name, _, ranks, _ in found} == expected


def test_a_server_that_is_killed_again_and_again_loses_no_answer_it_acknowledged(study, server):
    storage, tokens = study
    clients, finished = [join_study(server, tokens[name]) for name in PEOPLE[: 16 if LONG else 4]], Event()
    acknowledged = []

    def annotate(person):
        client, form = clients[person]
        with closing(client):
            for place in range(1, len(TEXTS) + 1):
                given = form | {"phase": ""} | ballot(person, place)
                for _ in range(ATTEMPTS):
                    try:
                        assert client.post(f"/annotate/{place}", data=given).status_code == 303
                    except httpx.TransportError:
                        time.sleep(0.02)
                    else:
                        acknowledged.append((PEOPLE[person], tuple(map(int, ballot(person, place).values()))))
                        break
                time.sleep(0.05)

    def kill():
        while not finished.is_set():
            until = len(acknowledged) + 3
            while len(acknowledged) < until and not finished.wait(0.01):
                pass
            server.kill()
            stored = {(name, tuple(ranks)) for name, _, ranks, _ in load_stored_answers(storage)}
            sizes.append(len(stored))
            lost.extend(set(acknowledged) - stored)
            server.start()

    sizes, lost = [], []
    with (
        record_outcomes("SIGKILL", f"serve on {storage.engine.name}") as counts,
        ThreadPoolExecutor(len(clients) + 1) as people,
    ):
        killer = people.submit(kill)
        list(people.map(annotate, range(len(clients))))
        finished.set()
        killer.result()
        counts["cases"] = len(sizes)
    assert lost == []
    assert len(sizes) >= 2
    found = [(name, tuple(ranks)) for name, _, ranks, _ in load_stored_answers(storage)]
    assert sorted(found) == sorted(set(acknowledged))
    assert len(found) == len(clients) * len(TEXTS)
