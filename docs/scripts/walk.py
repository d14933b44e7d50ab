"""Open every page of the built site in Chromium, at desktop and phone width, and report problems."""

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
    """Serve files without logging."""

    def log_message(self, *_: object) -> None:
        """Do not log the message."""


def main() -> int:
    """Print a line per problem. The exit code is 1 if there is one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        problems = [line for width in WIDTHS for line in find_problems(browser, server.server_port, width)]
        browser.close()
    sys.stdout.write("\n".join([*problems, f"{len(problems)} problems"]) + "\n")
    return bool(problems)


def find_problems(browser: Browser, port: int, width: int) -> Iterator[str]:
    """Yield script errors, missing files, requests to other servers, and pages wider than the window."""
    address, problems = f"http://127.0.0.1:{port}/", list[str]()
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "response", lambda answer: problems.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
    )
    page.on("request", lambda sent: problems.append(sent.url) if not sent.url.startswith((address, "data:")) else None)
    for name in sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html")):
        problems.clear()
        page.goto(address + name)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            problems.append("wider than the window")
        yield from (f"{name} at {width} pixels: {each}" for each in problems if "favicon" not in each)
    page.close()


if __name__ == "__main__":
    sys.exit(main())
