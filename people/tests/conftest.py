"""Fixtures that the tests of human studies share.

They import what they need when they are used: the process that starts the workers loads this file as well.
"""

from __future__ import annotations

import pytest

from databases import cluster, url

__all__ = ["cluster", "url"]


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A comparison's folder."""
    from sites import save_comparison

    return save_comparison(tmp_path_factory.mktemp("results") / "reviews")


@pytest.fixture
def full_site(tmp_path, comparison):
    """A site with every room."""
    from studies import site

    made = site(tmp_path, results=[comparison])
    yield made
    made.application.storage.close()


@pytest.fixture
def chief(full_site):
    """The admin's browser at that site."""
    from sites import admin

    return admin(full_site)


@pytest.fixture
def start_server(tmp_path, monkeypatch):
    """A function that starts `expound people serve` without waiting for requests."""
    from starting import make_starter

    return make_starter(monkeypatch, "people", "serve", "--storage", f"sqlite:///{tmp_path}/s.db")


@pytest.fixture
def create(tmp_path):
    """A function that runs `expound people create` on the storage of `start_server`."""
    from typer.testing import CliRunner

    from expound.cli import app

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
    from browsing import served

    with served(full_site) as found:
        yield found


@pytest.fixture
def open_page(browser, address):
    """A function that opens a page of the served site in a new browser context; errors of any page fail the test."""
    from browsing import visitor

    with visitor(browser, address) as found:
        yield found
