"""Servers: tokens that are guessed, printed or redirected, answers that wait, and a proxy in front."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from attacked import record_outcomes
from expound.cli.shared.server import Listener, listen
from expound.serve import Limits
from forks import find_free_port
from serving import listening
from sites import TOKEN, csrf, site, stranger
from studies import project
from studies import site as study_site


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


@contextmanager
def https_proxy(folder, address):
    """Ends TLS in front of a server, as nginx does; gives the port and a context that trusts its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    loop, where = asyncio.new_event_loop(), urlsplit(address)

    async def copy(reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader, writer):
        there = await asyncio.open_connection(where.hostname, where.port)
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        starting = asyncio.start_server(connect, "localhost", 0, ssl=context)
        server = asyncio.run_coroutine_threadsafe(starting, loop).result(30)
        yield server.sockets[0].getsockname()[1], ssl.create_default_context(cafile=certificate)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_redirects_links_and_cookies_stay_https_behind_a_proxy(tmp_path):
    upstream = f"http://127.0.0.1:{(port := find_free_port())}"
    with record_outcomes("redirects", "a proxy with TLS in front") as counts, https_proxy(tmp_path, upstream) as found:
        public = f"https://localhost:{found[0]}"
        made = study_site(tmp_path, with_model=False, address=public)
        tokens = project(made)
        with listening(made, port), httpx.Client(base_url=public, verify=found[1], follow_redirects=True) as client:

            def get(path, **params):
                answer = client.get(path, params=params)
                for step in (*answer.history, answer):
                    assert str(step.url).startswith(f"{public}/"), step.url
                    assert urlsplit(step.headers.get("location", "/"))[:2] == ("", "")
                    assert "http://" not in step.text
                    assert "/sign-in" not in path or TOKEN not in step.headers.get("location", "")
                    counts.update(cases=1)
                return answer

            for path in ("/sign-in/", "/sign-in//", "//sign-in", "/studies/", "/static/style.css/", "/studies"):
                get(path, token=TOKEN, next="https://evil.example/")
            assert client.cookies == httpx.Cookies()
            page = get("/sign-in", token=TOKEN)
            (cookie,) = client.cookies.jar
            assert cookie.secure
            own = {"origin": public, "sec-fetch-site": "same-origin"}
            form = {"csrf": csrf(get("/studies/first")), "names": "Cleo"}
            page = client.post("/studies/first/invitations", data=form, headers=own)
            (link,) = re.findall(r"https?://[^\s\"<]*/join/[\w-]+", page.text)
            assert link.startswith(f"{public}/join/")
            for joined in (urlsplit(link).path, f"/join/{tokens['Ada']}"):
                page = client.post(joined, data={"csrf": csrf(get(joined))}, headers=own)
                assert str(page.url) == f"{public}/annotate"
                assert client.post(joined, headers={"origin": "https://evil.example"}).status_code == 403
        made.application.storage.close()


@pytest.mark.parametrize("how", ["in the address", "in the form"])
def test_after_ten_wrong_tokens_an_address_has_to_wait_and_others_do_not(how, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("expound.serve.settings.time.monotonic", lambda: now[0])
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
    from expound.serve.settings import MAX_ADDRESSES, WrongTokens

    wrong = WrongTokens(1, 60)
    for number in range(2 * MAX_ADDRESSES):
        wrong.add(str(number))
    assert len(wrong._latest._items) == MAX_ADDRESSES
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
