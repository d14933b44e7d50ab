"""Work with models goes through one bounded queue; pages of annotators never wait for it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import httpx
import pytest

from expound.serve import Limits
from expound.serve.explore.queue import StoppedError, WorkQueue
from expound.serve.settings import BusyError
from serving import listening
from sites import TEXTS, TOKEN, admin, csrf
from studies import project, site

WAITING = 20


@contextmanager
def admin_client(address, **options):
    """An HTTP client in which the admin is signed in."""
    with httpx.Client(base_url=address, headers={"accept": "text/html"}, timeout=60, **options) as found:
        found.get("/sign-in", params={"token": TOKEN})
        yield found


def slow_down(explorer, monkeypatch, seconds):
    """Makes every explanation take `seconds` unless it is stopped; returns the started and the stopped methods."""
    started, ended = [], []

    def explain(asked, name, report=None, stop=None):
        started.append(name)
        for _ in range(int(seconds / 0.01)):
            if stop.is_set():
                ended.append(name)
                raise StoppedError
            time.sleep(0.01)
        return whole(asked, name, report, stop)

    whole = explorer.explain
    monkeypatch.setattr(explorer, "explain", explain)
    return started, ended


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def test_a_full_queue_refuses_work_until_a_task_ends():
    queue, go = WorkQueue(3, 60), Event()
    first = [queue.submit(lambda stop: go.wait(10)) for _ in range(3)]
    with pytest.raises(BusyError, match="3 explanations are waiting"):
        queue.submit(lambda stop: None)
    go.set()
    assert all(outcome.result(10) for outcome, _ in first)
    wait_until(lambda: queue._free._value == 3)
    assert queue.submit(lambda stop: 7)[0].result(10) == 7
    queue.close()


def test_tasks_run_one_at_a_time_in_order_of_submission():
    queue, seen, inside = WorkQueue(20, 60), [], []

    def work(number, stop):
        inside.append(number)
        seen.append((number, len(inside)))
        time.sleep(0.002)
        inside.remove(number)

    outcomes = [queue.submit(lambda stop, n=n: work(n, stop))[0] for n in range(20)]
    [outcome.result(10) for outcome in outcomes]
    assert seen == [(n, 1) for n in range(20)]
    queue.close()


def test_a_task_beyond_its_time_limit_is_stopped():
    queue = WorkQueue(2, 0.2)

    def endless(stop):
        stop.wait(10)
        raise StoppedError

    with pytest.raises(BusyError, match=r"more than 0\.2 seconds"):
        queue.submit(endless)[0].result(10)
    assert queue.submit(lambda stop: 1)[0].result(10) == 1
    queue.close()


def test_a_task_that_waits_too_long_is_not_started():
    queue, started = WorkQueue(2, 0.2), []
    queue.submit(lambda stop: time.sleep(0.4))
    with pytest.raises(BusyError, match="others take too long"):
        queue.submit(started.append)[0].result(10)
    assert not started
    queue.close()


def test_closing_the_queue_stops_running_and_waiting_tasks():
    queue = WorkQueue(3, 60)

    def endless(stop):
        stop.wait(10)
        raise StoppedError

    outcomes = [queue.submit(endless)[0] for _ in range(3)]
    wait_until(outcomes[0].running)
    queue.close()
    assert isinstance(outcomes[0].exception(5), StoppedError)
    assert all(outcome.cancelled() for outcome in outcomes[1:])


def test_a_full_queue_answers_503_with_retry_after(tmp_path, monkeypatch):
    made = site(tmp_path, limits=Limits(queue_size=2))
    chief, go = admin(made), Event()
    held = [made.explorer.work.submit(lambda stop: go.wait(20)) for _ in range(2)]
    asked = {"text": TEXTS[0], "method": "saliency"}
    for path in ("/explore", "/explore/export/json", "/explore/stream"):
        reply = chief.get(path, params=asked)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "2"), path
    form = asked | {"removed": "1", "csrf": csrf(chief.get("/explore"))}
    reply = chief.post("/explore/without", data=form, headers={"accept": "application/json"})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert "is busy" in reply.json()["error"]
    assert chief.get("/explore").status_code == 200
    go.set()
    [outcome.result(20) for outcome, _ in held]
    wait_until(lambda: made.explorer.work._free._value == 2)
    assert chief.get("/explore/export/json", params=asked).status_code == 200
    made.application.storage.close()


def test_an_explanation_beyond_its_time_limit_answers_503(tmp_path, monkeypatch):
    made = site(tmp_path, limits=Limits(work_seconds=0.3))
    slow_down(made.explorer, monkeypatch, 30)
    reply = admin(made).get("/explore/export/json", params={"text": TEXTS[0], "method": "saliency"})
    assert reply.status_code == 503
    assert "0.3 seconds" in reply.text
    made.application.storage.close()


def test_work_stops_when_the_client_disconnects(tmp_path, monkeypatch):
    made = site(tmp_path)
    started, ended = slow_down(made.explorer, monkeypatch, 20)
    with listening(made) as address, admin_client(address) as chief:
        for path in ("/explore/export/json", "/explore/stream", "/explore"):
            with pytest.raises(httpx.ReadTimeout):
                chief.get(path, params={"text": TEXTS[0], "method": "saliency", "whole": "1"}, timeout=0.7)
            wait_until(lambda: len(started) == len(ended) > 0)
            wait_until(lambda: made.explorer.work._free._value == made.limits.queue_size)
        assert len(started) == 3
    made.application.storage.close()


def test_the_server_ends_while_work_is_done(tmp_path, monkeypatch):
    made = site(tmp_path)
    started, ended = slow_down(made.explorer, monkeypatch, 60)
    with ThreadPoolExecutor(1) as pool:
        with listening(made) as address, admin_client(address) as chief:
            asked = {"text": TEXTS[0], "method": "saliency"}
            left = pool.submit(lambda: chief.get("/explore/export/json", params=asked, timeout=30))
            wait_until(lambda: started)
        wait_until(lambda: ended)
        assert left.exception(30) is not None or left.result().status_code in (499, 503)
    made.application.storage.close()


def test_annotators_pages_are_quick_while_many_explanations_wait(tmp_path):
    made = site(tmp_path)
    token = project(made, methods=["saliency", "attention_all"], people=("Ada",))["Ada"]
    with listening(made) as address, admin_client(address) as chief, ThreadPoolExecutor(WAITING) as crowd:
        text = " ".join(TEXTS)
        waiting = [
            crowd.submit(
                chief.get, "/explore/export/json", params={"text": f"{text} {n}", "method": "kernel_shap"}, timeout=6
            )
            for n in range(WAITING)
        ]
        wait_until(lambda: made.explorer.work._free._value <= made.limits.queue_size - WAITING + 1)
        with admin_client(address, follow_redirects=False) as ada:
            page = ada.get(f"/join/{token}")
            form = {"csrf": csrf(page)}
            assert ada.post(f"/join/{token}", data=form).status_code == 303
            took = []
            for place in range(1, len(TEXTS) + 1):
                given = form | {"phase": "", "rank-A": "1", "rank-B": "2"}
                for method, data in (("GET", None), ("POST", given)):
                    started = time.perf_counter()
                    assert ada.request(method, f"/annotate/{place}", data=data).status_code in (200, 303)
                    took.append(time.perf_counter() - started)
            assert sum(not each.done() for each in waiting) >= WAITING // 2
        assert sorted(took)[len(took) // 2] < 0.2, took
        assert max(took) < 1, took
    made.application.storage.close()
