"""What the tests of the pages share."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from browsing import served, visitor
from databases import cluster, url
from exegete.cli import app as commands
from sites import admin, compared, site

__all__ = ["cluster", "url"]


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A comparison's folder."""
    return compared(tmp_path_factory.mktemp("results") / "reviews")


@pytest.fixture
def whole(tmp_path, comparison):
    """A site with every room."""
    made = site(tmp_path, results=[comparison])
    yield made
    made.studies.close()


@pytest.fixture
def chief(whole):
    """The admin's browser at that site."""
    return admin(whole)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts `exegete serve` without waiting for requests; returns the address and what it printed."""

    def start(*options):
        begun = {}

        def run(self, sockets):
            begun.update(host=sockets[0].getsockname()[0], port=sockets[0].getsockname()[1], config=self.config)
            sockets[0].close()

        monkeypatch.setattr("uvicorn.Server.run", run)
        result = CliRunner().invoke(
            commands, ["serve", "--storage", f"sqlite:///{tmp_path}/s.db", "--port", "0", *options]
        )
        if result.exception is not None:
            raise result.exception
        return begun | {"printed": result.stderr}

    return start


@pytest.fixture
def address(whole):
    """Where the site with every room is served."""
    with served(whole) as found:
        yield found


@pytest.fixture
def opened(browser, address):
    """Opens windows of new people at the served site; what goes wrong in any of them fails the test."""
    with visitor(browser, address) as found:
        yield found
