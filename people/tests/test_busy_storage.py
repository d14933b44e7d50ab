"""A storage that others write to: the annotator's answer waits, is sent again, and is stored once."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html import unescape

import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from browsing import served
from expound.serve.settings import BusyError
from expound_people import storage as storing
from expound_people import write_limit
from expound_people.tables import AnnotatorAnswer
from expound_people.write_limit import run_write
from sites import admin, csrf
from studies import annotator, project, site


@pytest.fixture
def study_site(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "ANSWER_TIMEOUT", 0.2)
    found = site(tmp_path, with_model=False)
    yield found
    found.application.storage.close()


@contextmanager
def lock_storage(folder):
    """Holds the write lock of the storage, as another program would."""
    other = sqlite3.connect(folder / "studies.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def answers(study_site):
    with study_site.application.storage.read_session() as session:
        return list(session.scalars(select(AnnotatorAnswer)))


def fields(page):
    """The hidden fields of a page's form."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.text)
    return {unescape(name): unescape(value) for name, value in found}


def test_an_answer_to_a_locked_storage_is_returned_and_saved_once_when_sent_again(study_site, tmp_path):
    ada = annotator(study_site, project(study_site, kind="simulate")["Ada"])
    given = {"csrf": csrf(ada.get("/annotate/1")), "phase": "before", "guess": "1", "seconds": "3.5"}
    with lock_storage(tmp_path):
        reply = ada.post("/annotate/1", data=given)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
        assert "Nothing is lost" in reply.text
        assert fields(reply) == given
        assert ada.get("/annotate/1").status_code == 200  # readers do not wait
    assert answers(study_site) == []
    again = ada.post("/annotate/1", data=fields(reply))
    assert again.status_code == 200
    (kept,) = answers(study_site)
    assert (kept.content, kept.seconds, kept.revision) == ({"guess": "good"}, 3.5, 1)


def test_other_changes_report_a_busy_storage(study_site, tmp_path):
    project(study_site)
    chief = admin(study_site)
    form = {"csrf": csrf(chief.get("/studies")), "names": "Cleo"}
    with lock_storage(tmp_path):
        reply = chief.post("/studies/first/invitations", data=form, headers={"accept": "application/json"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert chief.post("/studies/first/invitations", data=form).status_code == 200


def run_in_new_loop(coroutine):
    """Runs a coroutine in another thread, since the thread of the tests may run the browser's loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_waiting_writers_leave_the_threads_of_pages_free():
    inside, most, go = [], [], threading.Event()

    def write():
        inside.append(None)
        most.append(len(inside))
        go.wait(10)
        inside.pop()

    async def crowd():
        waiting = [asyncio.create_task(run_write(write)) for _ in range(30)]
        while len(inside) < write_limit.MAX_WRITERS:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(lambda: 7) == 7
        go.set()
        await asyncio.gather(*waiting)

    run_in_new_loop(crowd())
    assert max(most) == write_limit.MAX_WRITERS
    assert len(most) == 30


def test_waiting_too_long_for_a_writer_is_reported(monkeypatch):
    monkeypatch.setattr(write_limit, "WRITE_TIMEOUT", 0.1)
    go = threading.Event()

    async def crowd():
        first = [asyncio.create_task(run_write(lambda: go.wait(10))) for _ in range(write_limit.MAX_WRITERS)]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await run_write(lambda: None)
        go.set()
        await asyncio.gather(*first)
        return await run_write(lambda: 7)

    assert run_in_new_loop(crowd()) == 7


@pytest.mark.browser
def test_the_annotator_sees_that_an_answer_is_being_saved(study_site, tmp_path, browser):
    token = project(study_site, kind="highlight")["Ada"]
    with served(study_site) as address, browser.new_context(base_url=address) as window:
        page = window.new_page()
        page.goto(f"/join/{token}")
        page.get_by_role("button", name="Begin").click()
        page.goto("/annotate/1")
        with lock_storage(tmp_path):
            page.get_by_role("button", name="Save and continue").click()
            expect(page.get_by_role("button", name="Saving…")).to_be_disabled()
            time.sleep(3)
            expect(page.get_by_role("button", name="Saving…")).to_be_disabled()
            assert page.url.endswith("/annotate/1")
        page.wait_for_url("**/annotate/2")
        expect(page.get_by_role("button", name="Save and continue")).to_be_enabled()
    (kept,) = answers(study_site)
    assert kept.revision == 1
