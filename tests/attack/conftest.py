"""Marks the tests of this folder as attacks, and makes their thousands of cases faster."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import datasets.arrow_dataset
import pytest

from databases import cluster, url

__all__ = ["cluster", "url"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Marks all tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.attack)


@pytest.fixture(scope="module", autouse=True)
def low_overhead():
    """Saves the time of thousands of fingerprints of datasets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.arrow_dataset, "generate_fingerprint", lambda _: uuid4().hex)
        yield
