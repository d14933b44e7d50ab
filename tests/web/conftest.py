"""What the tests of the pages share, and which of them need a program that may be missing."""

from __future__ import annotations

import os
import shutil

import pytest

from sites import admin, compared, site

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
NEED_BROWSER = ["test_pages_in_browser.py", "test_accessibility.py"]
if BROWSER is None and not os.environ.get("EXEGETE_REQUIRE_BROWSER"):
    collect_ignore = NEED_BROWSER


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
