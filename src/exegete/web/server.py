"""The site as a server."""

from __future__ import annotations

import uvicorn

from exegete.web.app import create_app
from exegete.web.settings import MAX_HEADER_BYTES
from exegete.web.site import Site
from exegete.web.timeouts import TimeoutProtocol


def make_server_config(site: Site, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves a site; port 0 takes a free one. Requests are not logged: addresses hold tokens and texts."""
    return uvicorn.Config(
        create_app(site),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        http=TimeoutProtocol,
        timeout_graceful_shutdown=3,
    )
