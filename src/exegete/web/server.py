"""The configuration of the web server."""

from __future__ import annotations

import uvicorn

from exegete.web.app import create_app
from exegete.web.settings import MAX_HEADER_BYTES
from exegete.web.site import Site
from exegete.web.timeouts import TimeoutProtocol


def make_server_config(site: Site, host: str, port: int) -> uvicorn.Config:
    """Return the configuration of a uvicorn server for the site; port 0 takes a free port."""
    return uvicorn.Config(
        create_app(site),
        host=host,
        port=port,
        # Requests are not logged: their addresses contain invitation tokens and private texts.
        access_log=False,
        log_level="warning",
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        http=TimeoutProtocol,
        # An open event stream would otherwise delay the shutdown until its browser leaves.
        timeout_graceful_shutdown=3,
    )
