"""The services behind the pages of a server, and its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from expound.errors import ExpoundError
from expound.serve.settings import Limits

if TYPE_CHECKING:
    from expound.serve.explore.service import Explorer

ErrorHandler = Callable[[Request, Exception], Response | Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Application:
    """The pages that a package adds to a server. Its own services can be fields of a subclass.

    Attributes:
        routes: Routes that check for themselves who may use them.
        admin_routes: Routes for the signed-in admin alone.
        templates: Folder of templates, which can extend `base.html.j2` and include the library's templates.
        scripts: Scripts by file name, served as /static/NAME.
        navigation: Addresses and names in the menu of the admin's pages.
        home: Address of the admin's first page; default: the first one of the menu.
        upload_paths: Addresses that take files.
        error_handlers: Handlers of the application's own exceptions.
        template_values: Returns further values that templates see, for the language of a page.
        visitor_paths: Beginnings of the addresses of pages for visitors who are not the admin.
        visitor_layout: Template that these pages extend.
        visitor_cookie: Cookie that signs visitors in; the tokens of the forms on these pages are derived from it.
    """

    routes: Sequence[APIRouter] = ()
    admin_routes: Sequence[APIRouter] = ()
    templates: Path | None = None
    scripts: Mapping[str, Path] = field(default_factory=dict)
    navigation: Sequence[tuple[str, str]] = ()
    home: str = ""
    upload_paths: frozenset[str] = frozenset()
    error_handlers: Mapping[type[Exception], ErrorHandler] = field(default_factory=dict)
    template_values: Callable[[str], Mapping[str, Any]] = lambda language: {}
    visitor_paths: tuple[str, ...] = ()
    visitor_layout: str = "base.html.j2"
    visitor_cookie: str = ""


@dataclass(frozen=True)
class Site:
    """The services behind the pages of a server, and its settings. Pages without a service are not served.

    Attributes:
        token: The admin's secret, of at least 20 characters.
        explorer: Models to explain.
        application: Pages of another package.
        limits: Bounds on requests.
        hosts: Host names and addresses by which browsers may ask for the server.
        address: The URL at which browsers reach the server, used in links; default: the URL of the request.
        api_token: The secret of programs that use the API, of at least 20 characters; empty: the API is not served.
    """

    # Not in the repr: a traceback or log line that prints the site must not print the secret.
    token: str = field(repr=False)
    explorer: Explorer | None = None
    application: Application = Application()
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    address: str = ""
    api_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if len(self.token) < 20:
            raise ExpoundError("expected an admin token of at least 20 characters: a shorter one can be guessed")
        if self.api_token and len(self.api_token) < 20:
            raise ExpoundError("expected an API token of at least 20 characters: a shorter one can be guessed")
        if self.api_token and (self.explorer is None or not self.explorer.language_models):
            raise ExpoundError("the API needs a language model: give one with --model and --task generation")

    @property
    def navigation(self) -> list[tuple[str, str]]:
        """The addresses and names of the menu on the admin's pages."""
        own = [] if self.explorer is None else [("/explore", "Explore")]
        return [*own, *self.application.navigation]

    def address_of(self, request: Request) -> str:
        """Return the URL at which browsers reach the server, without a slash at the end."""
        return self.address or str(request.base_url).rstrip("/")


def get_site(request: Request) -> Site:
    """Return the site of the application that handles the request."""
    site: Site = request.app.state.site
    return site
