"""`expound people serve`: the pages of studies, for the admin and for the people who take part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from expound.cli.shared.checks import check
from expound.cli.shared.console import say, silence_libraries
from expound.cli.shared.server import Host, Names, Port, listen
from expound.cli.shared.stopping import set_stop_message
from expound_people.cli.shared import StorageUrl, open_storage

if TYPE_CHECKING:
    from expound_people.storage import Storage

PLACES = {"prolific": "{{{{%{name}%}}}}", "mturk": "${{{name}}}"}
"""The syntax of each recruiting platform for values that it inserts into a URL."""


def serve(
    study: Annotated[str | None, typer.Argument(help="The study that the admin sees first. Default: the list.")] = None,
    storage: StorageUrl = None,
    result: Annotated[
        list[Path] | None,
        typer.Option("--result", "-r", help="Folder of `expound compare`: the page offers studies of it. Repeatable."),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    name: Names = None,
) -> None:
    """Serve all human studies in a database.

    By default only this machine can connect, with the token in the printed address. The environment variable
    EXPOUND_ADMIN_TOKEN sets a fixed token. People take part through invitation links, which the page of a study
    creates, or through the printed link of a study with a protocol; put an HTTPS server in front of it if they connect
    from outside.

    Examples: expound people serve films

    expound people serve --host 0.0.0.0 --public-host https://study.example.org

    expound people serve --storage postgresql://USER:PASSWORD@HOST/NAME
    """
    check(files=result or [])
    from expound.evaluation.compare.comparison import Comparison
    from expound.serve import Site
    from expound_people.application import make_application
    from expound_people.projects import find_project

    silence_libraries()
    results = {folder.absolute().name: Comparison.load(folder) for folder in result or ()}
    studies, home = open_storage(storage), "/studies"
    if study is not None:
        with studies.read_session() as session:
            home = f"/studies/{quote(find_project(session, study).name)}"
    listener = listen(host, port, name)
    _print_links(studies, listener.address)
    set_stop_message("answers are saved: start the server again with the same command")
    pages = make_application(studies, results, home)
    listener.run(Site(listener.token, application=pages, hosts=listener.hosts, address=listener.address))


def _print_links(storage: Storage, address: str) -> None:
    """Print the link and the digest of each study with a protocol."""
    from sqlalchemy import select

    from expound_people.protocol.admission import PARAMETERS
    from expound_people.protocol.file import digest_protocol, parse_protocol
    from expound_people.tables import Project

    with storage.read_session() as session:
        for project in session.scalars(select(Project)):
            if project.protocol:
                # The query string that a recruiting platform must append to the study's address.
                platform = parse_protocol(project.protocol).recruiting.platform
                query = "&".join(f"{name}={PLACES[platform].format(name=name)}" for name in PARAMETERS[platform])
                link = f"{address}/take/{quote(project.name)}" + (f"?{query}" if query else "")
                say(f"{project.name}: people take part at {link}")
                say(f"{project.name}: SHA-256 of the protocol: {digest_protocol(project.protocol)}")
