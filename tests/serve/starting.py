"""Commands that serve pages, started without waiting for requests."""

from __future__ import annotations

import socket

from typer.testing import CliRunner

from expound.cli import app


def make_starter(monkeypatch, *command):
    """A function that runs a command that serves pages; it returns the address and the output."""

    def start(*options):
        facts = {}

        def run(self, sockets):
            facts.update(host=sockets[0].getsockname()[0], port=sockets[0].getsockname()[1], config=self.config)
            with socket.socket(sockets[0].family) as client:
                facts["refused"] = client.connect_ex(sockets[0].getsockname())
            sockets[0].close()

        monkeypatch.setattr("uvicorn.Server.run", run)
        result = CliRunner().invoke(app, [*command, "--port", "0", *options])
        if result.exception is not None:
            raise result.exception
        return facts | {"printed": result.stderr}

    return start
