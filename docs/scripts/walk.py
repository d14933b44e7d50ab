"""Opens every page of the built site in Chromium, as wide as a desktop and as a phone, and says what is wrong there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Browser, sync_playwright

SITE = Path(__file__).parents[2] / "site"
WIDTHS = (1280, 360)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> int:
    """Writes a line for each trouble; the exit code says whether there was any."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        found = [line for width in WIDTHS for line in troubles(browser, server.server_port, width)]
        browser.close()
    sys.stdout.write("\n".join([*found, f"{len(found)} troubles"]) + "\n")
    return bool(found)


def troubles(browser: Browser, port: int, width: int) -> Iterator[str]:
    """Errors of scripts, files that are missing, requests to other servers, pages that are wider than the window."""
    address, here = f"http://127.0.0.1:{port}/", list[str]()
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("pageerror", lambda error: here.append(str(error)))
    page.on("response", lambda answer: here.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    page.on("request", lambda sent: here.append(sent.url) if not sent.url.startswith((address, "data:")) else None)
    for name in sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html")):
        here.clear()
        page.goto(address + name)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            here.append("wider than the window")
        yield from (f"{name} at {width} pixels: {each}" for each in here if "favicon" not in each)
    page.close()


if __name__ == "__main__":
    sys.exit(main())
