"""Fixtures that the tests of human studies share."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from browsing import served, visitor
from databases import cluster, url
from expound.cli import app
from sites import admin, save_comparison
from starting import make_starter
from studies import site

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
    made.application.storage.close()


@pytest.fixture
def chief(full_site):
    """The admin's browser at that site."""
    return admin(full_site)


@pytest.fixture
def start_server(tmp_path, monkeypatch):
    """A function that starts `expound people serve` without waiting for requests."""
    return make_starter(monkeypatch, "people", "serve", "--storage", f"sqlite:///{tmp_path}/s.db")


@pytest.fixture
def create(tmp_path):
    """A function that runs `expound people create` on the storage of `start_server`."""

    def run(*options):
        words = ["people", "create", "--storage", f"sqlite:///{tmp_path}/s.db", *options]
        result = CliRunner().invoke(app, words)
        if result.exception is not None:
            raise result.exception
        return result.stderr

    return run


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
