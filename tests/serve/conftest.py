"""Fixtures that the tests of the pages share."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from browsing import served, visitor
from databases import cluster, url
from expound.cli import app as commands
from sites import admin, save_comparison, site

__all__ = ["cluster", "url"]


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A comparison's folder."""
    return save_comparison(tmp_path_factory.mktemp("results") / "reviews")


@pytest.fixture
def full_site(tmp_path, comparison):
    """A site with every room."""
    made = site(tmp_path, results=[comparison])
    yield made
    made.studies.close()


@pytest.fixture
def chief(full_site):
    """The admin's browser at that site."""
    return admin(full_site)


@pytest.fixture
def start_server(tmp_path, monkeypatch):
    """A function that starts `expound serve` without waiting for requests; it returns the address and the output."""

    def start(*options):
        facts = {}

        def run(self, sockets):
            facts.update(host=sockets[0].getsockname()[0], port=sockets[0].getsockname()[1], config=self.config)
            with socket.socket(sockets[0].family) as client:
                facts["refused"] = client.connect_ex(sockets[0].getsockname())
            sockets[0].close()

        monkeypatch.setattr("uvicorn.Server.run", run)
        result = CliRunner().invoke(
            commands, ["serve", "--storage", f"sqlite:///{tmp_path}/s.db", "--port", "0", *options]
        )
        if result.exception is not None:
            raise result.exception
        return facts | {"printed": result.stderr}

    return start


@pytest.fixture
def address(full_site):
    """The URL at which the site with every room is served."""
    with served(full_site) as found:
        yield found


@pytest.fixture
def open_page(browser, address):
    """A function that opens a page of the served site in a new browser context; errors of any page fail the test."""
    with visitor(browser, address) as found:
        yield found
