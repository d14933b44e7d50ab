"""Measure the seconds of a page of `expound serve` on a new and on a warm connection, over loopback."""

from __future__ import annotations

import threading
import time
from statistics import median

import httpx
import uvicorn

from expound.cli.shared.server import listen
from expound.serve import Site
from expound.serve.app import make_server_config
from expound.serve.explore.service import Explorer
from timing import load_minilm, parse_options, write_results


def measure_page(client: httpx.Client, requests: int) -> float:
    """Return the median milliseconds of the page to sign in."""
    seconds = []
    for _ in range(requests):
        began = time.perf_counter()
        client.get("/sign-in").raise_for_status()
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def main() -> None:
    """Serve a model, and measure."""
    options = parse_options(__doc__, requests=200)
    listener = listen("127.0.0.1", 0, None)
    site = Site(listener.token, explorer=Explorer({"minilm": load_minilm()}), address=listener.address)
    server = uvicorn.Server(make_server_config(site, "127.0.0.1", listener.socket.getsockname()[1]))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
    thread.start()
    with httpx.Client(base_url=listener.address) as warm:
        measure_page(warm, 10)
        results = {"warm connection, ms": measure_page(warm, options.requests)}
    with httpx.Client(base_url=listener.address, limits=httpx.Limits(max_keepalive_connections=0)) as new:
        results["new connection, ms"] = measure_page(new, options.requests)
    server.should_exit = True
    thread.join()
    write_results(results, options.output)


if __name__ == "__main__":
    main()
