"""Where studies are kept: any database that SQLAlchemy knows, brought to the newest schema when it is opened."""

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
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web.busy import BusyError

logger = logging.getLogger(__name__)

DEFAULT_URL = "sqlite:///exegete-studies.db"
OPEN_TIMEOUT, ANSWER_TIMEOUT = 60, 10
"""Seconds that a storage waits for another writer when it is opened, and that an answer does."""
RETRY_INTERVAL = 0.02
POOL_SIZE = 20
MIGRATION_LOCK = 0x45786567
"""PostgreSQL's number for the lock that one migration at a time holds."""


class Storage:
    """A database of human studies: projects, examples, annotators and answers.

    SQLite keeps a write-ahead log and syncs every commit to disk; a writing transaction takes the write lock when it
    begins, so that none has to be given up half-progress.

    Args:
        url: as SQLAlchemy writes it: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`.

    Raises:
        ExegeteError: a URL or file that cannot be used, a missing driver, or a database of a later version.
    """

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self.engine = _make_engine(url)
        self._write = self.engine.execution_options(begin="BEGIN IMMEDIATE")
        try:
            with self._open_connection() as connection:
                upgrade(connection)
        except (DatabaseError, CommandError) as error:
            reason = str(getattr(error, "orig", error)).splitlines()[0]
            raise ExegeteError(f"{self.engine.url!r} cannot be used as storage: {reason}") from error

    @contextmanager
    def _open_connection(self) -> Iterator[Connection]:
        """A connection that writes; for SQLite it waits longer than answers do."""
        with self._write.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.connection.execute(f"PRAGMA busy_timeout={1000 * OPEN_TIMEOUT}")
            try:
                with connection.begin():
                    yield connection
            finally:
                if connection.dialect.name == "sqlite":
                    connection.connection.execute(f"PRAGMA busy_timeout={1000 * ANSWER_TIMEOUT}")

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        """A session that sees one state of the database. Raises BusyError as `write_session`."""
        with _report_busy(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        """A session whose changes are on disk when the block has ended, and undone when it raises.

        Raises:
            BusyError: others write for too long, the disk is full, or the database cannot be reached.
        """
        with _report_busy(), Session(self._write, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Closes all connections to the database."""
        self.engine.dispose()


@contextmanager
def _report_busy() -> Iterator[None]:
    """Turns a database's refusal for now into BusyError."""
    try:
        yield
    except (OperationalError, PoolTimeoutError) as error:
        logger.warning("the storage is busy: %s", " ".join(str(getattr(error, "orig", error)).split()))
        raise BusyError("the answers cannot be saved at the moment, and are kept on this page") from error


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Brings the schema to a revision, inside the connection's transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    command.upgrade(make_migration_config(connection), revision)


def make_migration_config(connection: Connection) -> Config:
    """Alembic's configuration for the migrations that come with the package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _make_engine(url: str) -> Engine:
    try:
        address = make_url(url)
        if address.drivername in ("postgresql", "postgres"):
            address = address.set(drivername="postgresql+psycopg")
        if address.get_backend_name() == "sqlite":
            return _make_sqlite_engine(address)
        return create_engine(
            address, pool_size=POOL_SIZE, max_overflow=POOL_SIZE, pool_timeout=OPEN_TIMEOUT, pool_pre_ping=True
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise ExegeteError("expected a storage as sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME") from error
    except ModuleNotFoundError as error:
        hint = ": pip install 'exegete[postgres]'" if error.name == "psycopg" else ""
        raise ExegeteError(f"the storage needs the package {error.name}{hint}") from error


def _make_sqlite_engine(address: Any) -> Engine:
    if address.database in (None, "", ":memory:"):
        raise ExegeteError("expected a file for SQLite, as sqlite:///studies.db: memory would lose every answer")
    try:
        Path(address.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExegeteError(f"{address!r} cannot be used as storage: {error}") from error
    engine = create_engine(address, pool_size=POOL_SIZE, max_overflow=POOL_SIZE, pool_timeout=OPEN_TIMEOUT)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        for setting in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={1000 * ANSWER_TIMEOUT}"):
            connection.execute(f"PRAGMA {setting}")
        _enable_write_ahead_log(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    return engine


def _enable_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Keeps a write-ahead log from now on; while another connection writes, SQLite refuses that without waiting."""
    end = time.monotonic() + OPEN_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(RETRY_INTERVAL)
