"""Empty databases of both kinds, a PostgreSQL server for them, and a server of studies that can be killed.

What takes long to import is imported where it is used: the process that starts the workers loads these fixtures too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from forks import Forge


def _serve(url, port):
    import uvicorn

    from expound.serve import Site
    from expound.serve.app import make_server_config
    from expound_people.application import make_application
    from expound_people.storage import Storage
    from sites import TOKEN

    config = make_server_config(Site(TOKEN, application=make_application(Storage(url))), "127.0.0.1", port)
    uvicorn.Server(config).run()


class Killable:
    """A server of the studies at a database URL; after `kill -9` it can be started again at its address."""

    def __init__(self, url, port):
        self.url, self.port, self.address = url, port, f"http://127.0.0.1:{port}"
        self.forge = Forge()
        self.start()

    def start(self):
        self.forge.start(_serve, self.url, self.port)
        for _ in range(600):
            try:
                httpx.get(f"{self.address}/favicon.ico")
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server does not answer")

    def kill(self):
        self.forge.kill()
        assert self.forge.wait() == -signal.SIGKILL

    def end(self):
        self.forge.end()


@contextmanager
def postgres(initdb):
    """Starts a PostgreSQL server, which refuses to run as root, and removes it; gives the URL of an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="expound-pg-"))
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres")
    control = str(Path(initdb).with_name("pg_ctl"))

    def run(*command):
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)

    run(
        initdb,
        "--pgdata",
        f"{folder}/data",
        "--username",
        "expound",
        "--auth",
        "trust",
        "--encoding",
        "UTF8",
        "--no-sync",
    )
    # The server itself is never killed in tests, so it need not wait for the disk.
    options = f"-k {folder} -c listen_addresses='' -c max_connections=80 -c fsync=off -c full_page_writes=off"
    run(control, "start", "--wait", "-D", f"{folder}/data", "-l", f"{folder}/log", "-o", options)
    try:
        yield f"postgresql://expound@/postgres?host={folder}"
    finally:
        run(control, "stop", "--mode", "immediate", "-D", f"{folder}/data")
        shutil.rmtree(folder)


def new_database(url):
    """The URL of a new, empty database in the cluster of another one."""
    from sqlalchemy import create_engine, make_url, text

    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        number = connection.scalar(text("SELECT count(*) FROM pg_database"))
        connection.execute(text(f"CREATE DATABASE studies{number}"))
    engine.dispose()
    return url.replace("/postgres?", f"/studies{number}?")


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
