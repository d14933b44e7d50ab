"""Protection of every request and response: known hosts, same origin, bounded bodies, security headers."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from expound.serve.api import PREFIX, make_error_response
from expound.serve.settings import MAX_DIGITS, Limits

# Inline styles are allowed because the patches of a picture have one. Inline scripts are not: injected ones do not run.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With "no-referrer", browsers send forms with the origin "null", which `_is_same_origin` refuses.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Pages show private texts: they must not remain in the cache of a shared computer.
    "cache-control": "no-store",
}
SAFE_METHODS = frozenset({"GET", "HEAD"})
HOST_PATTERN = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
PORTS = range(1, 1 << 16)


class SecurityMiddleware:
    """The outermost ASGI middleware: refuses unsafe requests and adds security headers to responses.

    It refuses unknown hosts, requests of other sites that change something, and bodies beyond the limits.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], limits: Limits, upload_paths: frozenset[str]) -> None:
        self.app, self.limits, self.upload_paths = app, limits, upload_paths
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection: refuse the request or pass it to the application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self.limits.upload_bytes if scope["path"] in self.upload_paths else self.limits.form_bytes
        refusal = self._check_request(scope, headers, limit)
        if refusal is not None:
            response: Response = PlainTextResponse(f"{refusal[1]}\n", refusal[0])
            if scope["path"].startswith(PREFIX):
                response = make_error_response(*refusal)
            await response(scope, receive, _add_security_headers(send))
            return
        # FastAPI answers HEAD with 405 unless a route declares it; RFC 9110 wants the headers that GET would have.
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _drop_body(send)
        await self.app(scope, _limit_body(receive, limit), _add_security_headers(send))

    def _check_request(self, scope: Scope, headers: Headers, limit: int) -> tuple[int, str] | None:
        """Return the status and the message that refuse the request, or None if it is allowed."""
        host = headers.get("host", "")
        match = HOST_PATTERN.fullmatch(host.lower())
        # DNS rebinding: another site can let its own name resolve to this machine, and would then have our origin.
        if match is None or match["name"] not in self.hosts or int(match["port"] or 1) not in PORTS:
            return 421, "This server does not have that name. Start it with --public-host to add one."
        # PostgreSQL stores no text with NUL, and no page needs one.
        if "\0" in scope["path"] or b"\0" in unquote_to_bytes(scope["query_string"]):
            return 400, "An address cannot contain NUL."
        if scope["method"] not in SAFE_METHODS and not _is_same_origin(headers, host):
            return 403, "This request comes from another site."
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > MAX_DIGITS or int(size) > limit:
            return 413, f"The body of this request may have at most {limit} bytes."
        return None


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Return whether one of our pages sent the request, or a program that is no browser and sends neither header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    # The scheme is not compared: behind a proxy that ends TLS, the server sees http where the browser has https.
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def _limit_body(receive: Receive, limit: int) -> Receive:
    # The content-length can be missing (chunked bodies) or wrong, so the bytes are counted as they arrive.
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, f"The body of this request may have at most {limit} bytes.")
        return message

    return receive_limited


def _drop_body(send: Send) -> Send:
    async def send_without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_without_body


def _add_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = list(message.get("headers", ()))
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                # A handler's own header wins: reports are served with a stricter policy, in a sandbox.
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
