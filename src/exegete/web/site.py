"""The parts of the site that a server offers, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from exegete.errors import ExegeteError
from exegete.web.settings import Limits

if TYPE_CHECKING:
    from exegete.web.browse.stored import Result
    from exegete.web.chat.service import ChatService
    from exegete.web.explore.service import Explorer
    from exegete.web.human_study.storage import Storage


@dataclass(frozen=True)
class Site:
    """The rooms that are open, the admin's token, and the names under which the server may be asked for.

    `explorer`: models to explain; `chats`: language models; `results`: what `compare` and `study` left, by name;
    `storage`: human studies; `address`: where browsers reach the server, which invitations begin with; default: where a
    request came to.
    """

    token: str = field(repr=False)
    explorer: Explorer | None = None
    results: Mapping[str, Result] = field(default_factory=dict)
    storage: Storage | None = None
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    address: str = ""
    chats: ChatService | None = None

    def __post_init__(self) -> None:
        if len(self.token) < 20:
            raise ExegeteError("expected an admin token of at least 20 characters: a shorter one can be guessed")

    def address_of(self, request: Request) -> str:
        """Where browsers reach the server, without a slash at the end."""
        return self.address or str(request.base_url).rstrip("/")

    @property
    def studies(self) -> Storage:
        """The storage, in rooms that are open only where there is one; ExegeteError elsewhere."""
        if self.storage is None:
            raise ExegeteError("this server has no studies: start it with --study NAME or --storage URL")
        return self.storage


def get_site(request: Request) -> Site:
    """The site that a request is for."""
    site: Site = request.app.state.site
    return site
