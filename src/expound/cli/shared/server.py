"""Starting a server of web pages: its address, its secret, and what is printed about them."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from socket import IPPROTO_TCP, TCP_NODELAY
from socket import socket as Socket
from typing import TYPE_CHECKING, Annotated

import typer

from expound.cli.shared.console import say
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.serve import Site

TOKEN = "EXPOUND_ADMIN_TOKEN"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # only compared, never bound
"""Wildcard addresses, and the address that reaches them from the machine itself."""

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines that use a --name.")]
Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 chooses a free port.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--public-host",
        help="Host name or URL of the server for browsers, such as study.example.org or https://study.example.org; "
        "links use the first one. Repeatable.",
    ),
]


@dataclass(frozen=True)
class Listener:
    """A socket that accepts connections, with what a `Site` needs to know about it."""

    socket: Socket
    host: str
    address: str
    hosts: tuple[str, ...]
    token: str = field(repr=False)
    is_new_token: bool

    def run(self, site: Site) -> None:
        """Print the address of the pages, and serve the site until the process is stopped."""
        import uvicorn

        from expound.serve.app import make_server_config

        # A token that the user has chosen is not printed, since the output of servers ends in logs.
        say(f"open: {self.address}/sign-in" + (f"?token={self.token}" if self.is_new_token else f" (token: ${TOKEN})"))
        uvicorn.Server(make_server_config(site, self.host, self.socket.getsockname()[1])).run(sockets=[self.socket])


def listen(host: str, port: int, names: Sequence[str] | None) -> Listener:
    """Return a socket that accepts connections; the admin's secret is $EXPOUND_ADMIN_TOKEN or a new one."""
    import uvicorn

    chosen = os.environ.get(TOKEN)
    all_names = [*(names or []), EVERYWHERE.get(host, host)]
    socket = uvicorn.Config("", host=host, port=port).bind_socket()
    # asyncio sets this option only on sockets that name the protocol, which uvicorn's do not; connections inherit it.
    # Without it, every response on a reused connection waits 40 ms for an acknowledgement.
    socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    # A program may connect as soon as it has read the address, before the server accepts connections.
    socket.listen()
    address = _public_address(all_names[0], socket.getsockname()[1])
    if host in EVERYWHERE and not names:
        say("other machines are refused: give the host name or address that their browsers use with --public-host")
    hosts, token = (*LOOPBACK, *map(_url_host, all_names)), chosen or secrets.token_urlsafe(32)
    return Listener(socket, host, address, hosts, token, is_new_token=not chosen)


def require_web() -> None:
    """Raise ExpoundError unless the packages of web pages are installed."""
    try:
        import fastapi
        import uvicorn
    except ModuleNotFoundError as error:
        raise ExpoundError(f"the pages need the package {error.name}: pip install 'expound[serve]'") from error
    del fastapi, uvicorn


def _url_host(name: str) -> str:
    """Return the host of a name or address as in a URL: without port, and IPv6 in brackets."""
    host = name.partition("://")[2] or name
    if host.count(":") > 1 and "]:" not in host:
        return f"[{host.strip('[]')}]"
    return re.sub(r":[0-9]+$", "", host.rstrip("/")).lower()


def _public_address(name: str, port: int) -> str:
    """Return the URL for browsers: the given address, or the host name with the server's port."""
    return name.rstrip("/") if "://" in name else f"http://{_url_host(name)}:{port}"
