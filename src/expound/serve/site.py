"""The site that a server offers: its pages, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from expound.errors import ExpoundError
from expound.serve.settings import Limits

if TYPE_CHECKING:
    from expound.serve.browse.stored import Result
    from expound.serve.explore.service import Explorer
    from expound_people.storage import Storage


@dataclass(frozen=True)
class Site:
    """The services behind the pages of a server, and its settings. Pages without a service are not served.

    Attributes:
        token: The admin's secret, of at least 20 characters.
        explorer: Models to explain.
        results: Stored results of `compare`, `explain` and `study`, by name.
        storage: The database of human studies.
        limits: Bounds on requests.
        hosts: Host names and addresses by which browsers may ask for the server.
        address: The URL at which browsers reach the server, used in invitations; default: the URL of the request.
        study: Name of the study for which the server was started: the admin's first page.
        api_token: The secret of programs that use the API, of at least 20 characters; empty: the API is not served.
    """

    # Not in the repr: a traceback or log line that prints the site must not print the secret.
    token: str = field(repr=False)
    explorer: Explorer | None = None
    results: Mapping[str, Result] = field(default_factory=dict)
    storage: Storage | None = None
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    address: str = ""
    study: str | None = None
    api_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if len(self.token) < 20:
            raise ExpoundError("expected an admin token of at least 20 characters: a shorter one can be guessed")
        if self.api_token and len(self.api_token) < 20:
            raise ExpoundError("expected an API token of at least 20 characters: a shorter one can be guessed")
        if self.api_token and (self.explorer is None or not self.explorer.language_models):
            raise ExpoundError("the API needs a language model: give one with --model and --task generation")

    def address_of(self, request: Request) -> str:
        """Return the URL at which browsers reach the server, without a slash at the end."""
        return self.address or str(request.base_url).rstrip("/")

    @property
    def studies(self) -> Storage:
        """The database of human studies. Raises ExpoundError on a server without studies."""
        if self.storage is None:
            raise ExpoundError("this server has no studies: start it with --study NAME or --storage URL")
        return self.storage


def get_site(request: Request) -> Site:
    """Return the site of the application that handles the request."""
    site: Site = request.app.state.site
    return site
