"""A served site and a browser, for the tests that walk the pages."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread

import uvicorn
from playwright.sync_api import expect, sync_playwright

from expound.serve.app import make_server_config
from sites import TOKEN

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PATIENCE = 15_000
expect.set_options(timeout=PATIENCE)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
NARROW = {"width": 360, "height": 740}


@contextmanager
def chromium(path):
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def served(made):
    """Serves a site in a thread of this process; gives its URL."""
    config = make_server_config(made, "127.0.0.1", 0)
    config.timeout_graceful_shutdown = 1
    socket, server = config.bind_socket(), uvicorn.Server(config)
    thread = Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@contextmanager
def visitor(browser, address):
    """Gives a function that opens pages at `address`, each with cookies of its own; the admin's is signed in."""
    troubles, contexts = [], []

    def open_page(path="/", *, admin=False, size=DESKTOP, **options):
        context = browser.new_context(base_url=address, viewport=size, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda line: troubles.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda sent: None if sent.url.startswith((address, "data:")) else troubles.append(sent.url))
        if admin:
            page.goto(f"/sign-in?token={TOKEN}")
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def fits(page):
    """Whether the page is no wider than the window, once the page is there with its style."""
    page.wait_for_load_state()
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def tab_to(page, what, value):
    """Presses Tab until the focused element's property is this value."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.{what}") == value:
            return
    raise AssertionError(f"no Tab leads to {what} = {value!r}")
