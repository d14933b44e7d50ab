"""The database of human studies, by SQLAlchemy; opening it upgrades its schema."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from expound.errors import ExpoundError
from expound.serve.settings import BusyError
from expound_people.tables import Base

logger = logging.getLogger(__name__)

DEFAULT_URL = "sqlite:///expound-studies.db"
OPEN_TIMEOUT, ANSWER_TIMEOUT = 60, 10
"""Seconds to wait for another writer when a storage is opened, and when an answer is saved."""
RETRY_INTERVAL = 0.02
POOL_SIZE = 20
PASSWORDS = ("password", "passwd", "sslpassword")
"""Parameters in the query of an address that are secret."""
MIGRATION_LOCK = 0x45786567
"""Key of the PostgreSQL advisory lock that a migration holds."""


class Storage:
    """A database of human studies: projects, examples, annotators and answers.

    Args:
        url: an SQLAlchemy URL: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`.

    Raises:
        ExpoundError: an unusable URL or file, a missing driver, or a database of a later version.
    """

    def __init__(self, url: str = DEFAULT_URL) -> None:
        opening = _make_engine(url, OPEN_TIMEOUT)
        try:
            with opening.execution_options(begin="BEGIN IMMEDIATE").begin() as connection:
                upgrade(connection)
        # ValueError: a path with NUL or half of a surrogate pair.
        except (DatabaseError, CommandError, ValueError) as error:
            reason = str(getattr(error, "orig", error)).splitlines()[0]
            raise ExpoundError(f"{mask_address(opening.url)} cannot be used as storage: {reason}") from error
        finally:
            opening.dispose()
        self.engine = _make_engine(url, ANSWER_TIMEOUT)
        # In SQLite a transaction that reads first and writes later fails, without waiting, if another one wrote in
        # between. Taking the write lock at the beginning avoids that.
        self._write = self.engine.execution_options(begin="BEGIN IMMEDIATE")

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        """Open a session that reads. Raises BusyError as `write_session`."""
        with _report_busy(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        """Open a session that commits when the block ends, and rolls back if the block raises.

        Raises:
            BusyError: another writer holds the lock for too long, the disk is full, or the database cannot be reached.
        """
        with _report_busy(), Session(self._write, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections to the database."""
        self.engine.dispose()


def mask_address(address: URL) -> str:
    """Return the address of a storage without its passwords, which can be in its query as well."""
    query = {name: "***" if name in PASSWORDS else value for name, value in address.query.items()}
    return address.set(query=query).render_as_string(hide_password=True)


@contextmanager
def _report_busy() -> Iterator[None]:
    """Turn temporary errors of the database into BusyError, and refused values into ExpoundError."""
    try:
        yield
    except (OperationalError, PoolTimeoutError) as error:
        # The log gets the reason; annotators do not, as it can name hosts and files.
        logger.warning("the storage is busy: %s", " ".join(str(getattr(error, "orig", error)).split()))
        raise BusyError("the answers cannot be saved at the moment, and are kept on this page") from error
    except (DataError, UnicodeEncodeError, OverflowError) as error:
        raise ExpoundError("a text or number here cannot be stored in the database") from error


def upgrade(connection: Connection) -> None:
    """Create the tables, or upgrade them to the latest revision, inside the connection's transaction."""
    if connection.dialect.name == "postgresql":
        # Several servers may start at once. The lock is released at the end of the transaction, even after a crash.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    config = Config()
    # Alembic interpolates options as ConfigParser does, so a % in a path has to be doubled.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    if MigrationContext.configure(connection).get_current_heads():
        command.upgrade(config, "head")
    else:
        # The tables are already those of the latest revision. Tables of others that have these names are an error.
        Base.metadata.create_all(connection, checkfirst=False)
        command.stamp(config, "head")


def _make_engine(url: str, lock_timeout: float) -> Engine:
    """Return the engine of a storage; in SQLite, a writer waits `lock_timeout` seconds for another one."""
    try:
        address = make_url(url)
        if address.drivername in ("postgresql", "postgres"):
            # SQLAlchemy's default is psycopg2; the extra `postgres` installs psycopg 3.
            address = address.set(drivername="postgresql+psycopg")
        if address.get_backend_name() == "sqlite":
            return _make_sqlite_engine(address, lock_timeout)
        # pool_pre_ping: a restarted database server would otherwise fail the next request of every pooled connection.
        return create_engine(
            address, pool_size=POOL_SIZE, max_overflow=POOL_SIZE, pool_timeout=OPEN_TIMEOUT, pool_pre_ping=True
        )
    # ValueError: a port that is no number, NUL in a path, or halves of surrogate pairs.
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        if isinstance(error, ExpoundError):
            raise
        raise ExpoundError("expected a storage as sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME") from error
    except ModuleNotFoundError as error:
        hint = ": pip install 'expound-people[postgres]'" if error.name == "psycopg" else ""
        raise ExpoundError(f"the storage needs the package {error.name}{hint}") from error


def _make_sqlite_engine(address: Any, lock_timeout: float) -> Engine:
    if address.database in (None, "", ":memory:"):
        raise ExpoundError("expected a file for SQLite, as sqlite:///studies.db: answers in memory would be lost")
    try:
        Path(address.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExpoundError(f"{mask_address(address)} cannot be used as storage: {error}") from error
    engine = create_engine(address, pool_size=POOL_SIZE, max_overflow=POOL_SIZE, pool_timeout=OPEN_TIMEOUT)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # Python's driver begins transactions by itself, and only before a write. With None, `_begin` below does so.
        connection.isolation_level = None
        # synchronous=FULL syncs every commit: a saved answer survives a power failure. Foreign keys are off by default.
        for setting in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={1000 * lock_timeout}"):
            connection.execute(f"PRAGMA {setting}")
        _enable_write_ahead_log(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    return engine


def _enable_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch SQLite to a write-ahead log, with which reading does not wait for writing."""
    # SQLite ignores the busy timeout for this pragma, and fails at once while another connection writes: poll instead.
    deadline = time.monotonic() + OPEN_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # The low byte of an extended error code is the primary code.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_INTERVAL)
