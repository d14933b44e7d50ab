"""Servers: tokens that are guessed, printed or redirected, answers that wait, and a proxy in front."""

from __future__ import annotations

import socket
import statistics
import time
from urllib.parse import urlsplit

import httpx
import pytest

from attacked import record_outcomes
from expound.cli.shared.server import Listener, listen
from expound.serve import Limits
from serving import listening
from sites import TOKEN, site, stranger


@pytest.fixture(scope="module")
def explored():
    return site()


def test_answers_on_a_warm_connection_do_not_wait_for_an_acknowledgement():
    listener = listen("127.0.0.1", 0, None)
    with listener.socket, socket.create_connection(listener.socket.getsockname()) as client:
        accepted, _ = listener.socket.accept()
        with accepted, record_outcomes("TCP_NODELAY", "expound serve") as counts:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert client.getpeername() == accepted.getsockname()
            counts |= {"cases": 1}


def test_a_chosen_token_is_not_printed(monkeypatch, capsys, explored):
    class Server:
        def __init__(self, config): ...

        def run(self, sockets):
            sockets[0].close()

    monkeypatch.setattr("uvicorn.Server", Server)
    for chosen in ("a-token-that-the-admin-has-chosen", ""):
        monkeypatch.setenv("EXPOUND_ADMIN_TOKEN", chosen)
        listener = listen("127.0.0.1", 0, None)
        assert isinstance(listener, Listener)
        assert listener.token not in repr(listener)
        listener.run(explored)
        printed = capsys.readouterr().err
        assert (listener.token in printed) == (not chosen)
        assert "/sign-in" in printed


def test_no_redirect_carries_a_token_or_names_another_scheme(explored):
    proxied = {"host": "127.0.0.1", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}
    with record_outcomes("redirects", "a proxy with TLS in front") as counts, listening(explored) as address:
        client = httpx.Client(base_url=address, headers=proxied)
        for path in ("/sign-in/", "/sign-in//", "//sign-in", "/explore/", "/static/style.css/", "/sign-in", "/explore"):
            answer = client.get(path, params={"token": TOKEN, "next": "https://evil.example/"})
            where = answer.headers.get("location", "/")
            assert urlsplit(where)[:2] == ("", "")
            assert "/sign-in" not in path or TOKEN not in where
            assert answer.status_code in (303, 401, 404), path
            counts.update(cases=1)


@pytest.mark.parametrize("how", ["in the address", "in the form"])
def test_after_ten_wrong_tokens_an_address_has_to_wait_and_others_do_not(how, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("expound.serve.attempts.time.monotonic", lambda: now[0])
    client = stranger(site())

    def guess(token):
        if how == "in the address":
            return client.get("/sign-in", params={"token": token}, follow_redirects=False)
        return client.post("/sign-in", data={"token": token}, follow_redirects=False)

    with record_outcomes("guessed tokens", how) as counts:
        assert [guess(f"guess {number}").status_code for number in range(12)] == [403] * 10 + [429] * 2
        # The right one waits as well: an answer at once would tell that it is right.
        refused = guess(TOKEN)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert client.get("/sign-in").status_code == 200
        for _ in range(3):
            now[0] += 1.01
            assert [guess("another").status_code for _ in range(3)] == [403, 429, 429]
        now[0] += 1.01
        assert guess(TOKEN).status_code == 303
        assert guess("forgotten").status_code == 403
        assert guess(TOKEN).status_code == 303
        counts |= {"cases": 24}


def test_guesses_of_many_addresses_take_little_memory():
    from expound.serve.attempts import MAX_ADDRESSES, WrongTokens

    wrong = WrongTokens(1, 60)
    for number in range(2 * MAX_ADDRESSES):
        wrong.add(str(number))
    assert len(wrong._latest) == MAX_ADDRESSES
    assert wrong.has_to_wait(str(2 * MAX_ADDRESSES - 1))


def test_nul_is_refused_in_every_address_and_form(explored):
    client = stranger(explored)
    for path in ("/%00", "/static/%00", "/sign-in?token=%00", "/explore?text=a%00b"):
        assert client.get(path).status_code == 400
    assert client.post("/sign-in", data={"token": "\0"}).status_code == 400
    assert client.post("/sign-in", data={"a\0b": "x"}).status_code == 400


def test_templates_in_every_field_of_a_question_stay_text(explored):
    client = stranger(explored)
    client.get("/sign-in", params={"token": TOKEN})
    for template in ("{{7*7}}", "${7*7}", "{% raw %}", "#{7*7}", "<%= 7*7 %>", "%(x)s", "{0.__class__}"):
        names = ("text", "pair", "method", "methods", "model", "target", "example", "next", "question")
        page = client.get("/explore", params=dict.fromkeys(names, template))
        assert page.status_code in (200, 422)
        assert ">49<" not in page.text
        assert "class 'str'" not in page.text


def test_a_page_of_a_running_server_is_answered_at_once_on_a_warm_connection(explored):
    limits = Limits()
    assert limits.wrong_tokens == 10
    listener = listen("127.0.0.1", 0, None)
    import threading

    import uvicorn

    from expound.serve.app import make_server_config

    server = uvicorn.Server(make_server_config(explored, "127.0.0.1", listener.socket.getsockname()[1]))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
    thread.start()
    seconds = []
    with httpx.Client(base_url=listener.address) as client:
        for _ in range(20):
            began = time.perf_counter()
            assert client.get("/static/style.css").status_code == 200
            seconds.append(time.perf_counter() - began)
    server.should_exit = True
    thread.join(30)
    assert min(seconds[1:]) < 0.02, statistics.median(seconds)
