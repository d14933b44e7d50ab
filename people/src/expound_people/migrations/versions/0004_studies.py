"""The first revision: a new storage gets its tables from `tables.py`, see `storage.upgrade`."""

# The number of the last of the revisions that this one joins, so that the databases of before open.
revision = "0004"
down_revision = None


def upgrade() -> None:
    """Leave the database as it is: at this revision it has its tables."""
