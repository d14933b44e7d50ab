"""Attacks: marked, and told in a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from databases import cluster, url

__all__ = ["cluster", "url"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Marks all tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.attack)
