"""A site that is served in a thread, for the tests of the pages."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import uvicorn

from expound.serve.app import make_server_config
from forks import find_free_port


@contextmanager
def listening(made, port=None):
    """Serves the site in a thread, on a free port unless one is given; gives its URL."""
    port = port or find_free_port()
    server = uvicorn.Server(make_server_config(made, "127.0.0.1", port))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
