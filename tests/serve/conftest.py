"""Fixtures that the tests of the pages share."""

from __future__ import annotations

import pytest

from browsing import served, visitor
from sites import site
from starting import make_starter


@pytest.fixture
def start_server(monkeypatch):
    """A function that starts `expound serve` without waiting for requests; it returns the address and the output."""
    return make_starter(monkeypatch, "serve")


@pytest.fixture
def address():
    """The URL at which the site is served."""
    with served(site()) as found:
        yield found


@pytest.fixture
def open_page(browser, address):
    """A function that opens a page of the served site in a new browser context; errors of any page fail the test."""
    with visitor(browser, address) as found:
        yield found
