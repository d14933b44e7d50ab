"""Empty databases of both kinds, for the tests of studies."""

from __future__ import annotations

import pytest

from serving import new_database, postgres


@pytest.fixture(scope="session")
def cluster(programs):
    """The URL of a database of a PostgreSQL server."""
    with postgres(programs["postgres"]) as found:
        yield found


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request, tmp_path):
    """An empty database's URL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/studies.db"
    return new_database(request.getfixturevalue("cluster"))
