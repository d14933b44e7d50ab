"""Protection of every request and answer: known hosts, same origin, bounded bodies, security headers."""

from __future__ import annotations

import re

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exegete.web.settings import MAX_DIGITS, UPLOAD_PATHS, Limits

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" a browser's forms come from "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
SAFE = frozenset({"GET", "HEAD"})
HOST_PATTERN = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
PORTS = range(1, 1 << 16)


class SecurityMiddleware:
    """The outermost middleware of the server, which refuses unsafe requests and adds security headers.

    Refuses: hosts the server is not known by (a page elsewhere could have its name resolved to this machine); requests
    that change something and come from another site; bodies beyond the limits, counted as they come in.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request or passes it on, and adds the security headers to the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self.limits.upload_bytes if scope["path"] in UPLOAD_PATHS else self.limits.form_bytes
        refusal = self._refusal(scope, headers, limit)
        if refusal is not None:
            await refusal(scope, receive, _dressed(send))
            return
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _headers_only(send)
        await self.app(scope, _counted(receive, limit), _dressed(send))

    def _refusal(self, scope: Scope, headers: Headers, limit: int) -> PlainTextResponse | None:
        host = headers.get("host", "")
        known = HOST_PATTERN.fullmatch(host.lower())
        if known is None or known["name"] not in self.hosts or int(known["port"] or 1) not in PORTS:
            told = "This server is not known by that name. Whoever starts it can give it the name with --name.\n"
            return PlainTextResponse(told, 421)
        if scope["method"] not in SAFE and not _from_here(headers, host):
            return PlainTextResponse("This request comes from another site.\n", 403)
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > MAX_DIGITS or int(size) > limit:
            return PlainTextResponse(f"A request here may have at most {limit} bytes.\n", 413)
        return None


def _from_here(headers: Headers, host: str) -> bool:
    """Whether the browser says that a page of ours sent the request; programs that are no browsers say nothing."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def _counted(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"A request here may have at most {limit} bytes.")
        return message

    return counting


def _headers_only(send: Send) -> Send:
    async def bodiless(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return bodiless


def _dressed(send: Send) -> Send:
    async def dressing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = list(message.get("headers", ()))
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return dressing
