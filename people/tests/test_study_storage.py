"""The storage on SQLite and PostgreSQL: its schema, its migrations, and its errors."""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from expound.errors import ExpoundError
from expound_people.items import StudyItem
from expound_people.projects import create_project, find_project
from expound_people.storage import Storage
from expound_people.tables import Base, Project


def test_migrations_make_the_tables_that_the_code_expects(url):
    storage = Storage(url)
    with storage.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    storage.close()


def test_a_reopened_storage_has_all_its_content(url):
    for name in ("first", "second"):
        storage = Storage(url)
        with storage.write_session() as session:
            create_project(session, name, [StudyItem(("a film",))], "highlight")
        storage.close()
    storage = Storage(url)
    with storage.read_session() as session:
        assert [find_project(session, name).items[0].content["texts"] for name in ("first", "second")] == [
            ["a film"]
        ] * 2
    storage.close()


def test_servers_that_open_an_empty_database_at_once_migrate_it_once(url):
    with ThreadPoolExecutor(6) as servers:
        opened = list(servers.map(Storage, [url] * 6))
    with opened[0].engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == ["0004"]
    for storage in opened:
        storage.close()


def test_opening_waits_for_another_writer(tmp_path):
    other = sqlite3.connect(tmp_path / "studies.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as server:
        opened = server.submit(Storage, f"sqlite:///{tmp_path / 'studies.db'}")
        with pytest.raises(TimeoutError):
            opened.result(timeout=1)
        other.execute("COMMIT")
        storage = opened.result(timeout=20)
    with storage.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
    storage.close()
    other.close()


def test_a_database_of_a_later_version_is_refused_unchanged(url):
    storage = Storage(url)
    with storage.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    storage.close()
    with pytest.raises(ExpoundError, match="cannot be used as storage"):
        Storage(url)


def test_a_failed_transaction_is_rolled_back(url):
    storage = Storage(url)

    def fail_after_flush():
        with storage.write_session() as session:
            create_project(session, "half", [StudyItem(("a film",))], "highlight")
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_after_flush()
    with storage.read_session() as session:
        assert session.query(Project).count() == 0
    storage.close()


def test_sqlite_syncs_every_commit_to_disk(tmp_path):
    storage = Storage(f"sqlite:///{tmp_path}/s.db")
    with storage.engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == 2
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
    storage.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "nonsense", "oracle+no://x"])
def test_an_unusable_storage_url_is_refused(url):
    with pytest.raises(ExpoundError):
        Storage(url)


@pytest.mark.parametrize("name", ["text.db", "text.db/s.db"])
def test_a_file_that_is_not_a_database_is_refused_unchanged(tmp_path, name):
    (tmp_path / "text.db").write_text("no database, " * 100)
    with pytest.raises(ExpoundError, match="cannot be used as storage: ") as told:
        Storage(f"sqlite:///{tmp_path}/{name}")
    assert "\n" not in str(told.value)
    assert (tmp_path / "text.db").read_text() == "no database, " * 100


def test_a_missing_driver_is_named(monkeypatch):
    for url, module, told in (("mysql://a@b/c", "MySQLdb", "MySQLdb$"), ("postgresql://a@b/c", "psycopg", "postgres")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ExpoundError, match=told):
            Storage(url)


def test_errors_of_connections_do_not_show_the_password():
    with pytest.raises(ExpoundError, match="cannot be used") as told:
        Storage("postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(told.value)
