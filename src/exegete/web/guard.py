"""Who may do what: the admin's token, annotators' invitations, and requests that other sites forge."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, HTTPException, Request, Response
from starlette.datastructures import UploadFile

from exegete.errors import ExegeteError
from exegete.web.site import site_of

ANNOTATOR = "exegete-annotator"
HEADER = "x-csrf-token"
MONTH = 30 * 24 * 3600

Form = Mapping[str, list[str]]
"""The text fields of a form, each with its values."""


class SignInNeededError(Exception):
    """Nobody is signed in where an admin is needed."""


def admin_cookie(token: str) -> str:
    """The name of the admin's cookie: servers on other ports of a machine have other ones."""
    return f"exegete-admin-{sha256(token.encode()).hexdigest()[:8]}"


def proof(secret: str, what: str) -> str:
    """A keyed digest (HMAC-SHA256) of a text, which only holders of the secret can compute."""
    return hmac.new(secret.encode(), what.encode(), sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def is_admin(request: Request) -> bool:
    """Whether the request comes with the admin's cookie."""
    token = site_of(request).token
    return same(request.cookies.get(admin_cookie(token), ""), proof(token, "admin"))


def need_admin(request: Request) -> None:
    """For pages of the admin: lets nobody else in."""
    if not is_admin(request):
        raise SignInNeededError


def sign_in(request: Request, response: Response) -> None:
    """Makes the browser the admin's."""
    token = site_of(request).token
    _set(request, response, admin_cookie(token), proof(token, "admin"), "strict")


def join(request: Request, response: Response, token: str) -> None:
    """Makes the browser that of an annotator who was invited with this token."""
    _set(request, response, ANNOTATOR, token, "lax")


def csrf_token(request: Request, token: str | None = None) -> str:
    """The token that a form of this page has to send back: made from a cookie that no other site can read.

    `token`: an annotator's, where the cookie is not set yet.
    """
    return proof(token or _secret(request), "csrf")


async def checked_form(request: Request) -> Form:
    """The form of a request that changes something, if it comes from a page of ours."""
    content = await read_form(request)
    given = request.headers.get(HEADER) or "".join(content.get("csrf", [])[:1])
    if not same(given, csrf_token(request)):
        raise HTTPException(403, "This form is too old or comes from somewhere else. Load its page again.")
    return content


async def read_form(request: Request) -> Form:
    """The text fields of a form, unchecked; files are kept in `request.state.files`."""
    limits = site_of(request).limits
    form = await request.form(max_files=1, max_fields=limits.fields, max_part_size=limits.form)
    fields: dict[str, list[str]] = {}
    files: dict[str, UploadFile] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields.setdefault(name, []).append(value)
        else:
            files[name] = value
    request.state.files, request.state.form = files, fields
    return fields


CheckedForm = Annotated[Form, Depends(checked_form)]
"""A form that comes from a page of ours."""
AnyForm = Annotated[Form, Depends(read_form)]
"""A form that may come from anywhere."""


async def uploaded(request: Request, form: CheckedForm) -> bytes:
    """The content of the form's file."""
    file = request.state.files.get("file")
    content: bytes = b"" if file is None else await file.read()
    if not content:
        raise ExegeteError("choose a file")
    return content


Upload = Annotated[bytes, Depends(uploaded)]
"""The content of a form's file."""


def one(form: Form, name: str, default: str = "") -> str:
    """The first value of a field."""
    return form.get(name, [default])[0]


def sign_in_address(request: Request) -> str:
    """The sign-in page, which leads back to this one."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/sign-in?next={quote(here if request.method == 'GET' else '/', safe='')}"


def local(address: str) -> str:
    """The address if it is on this site, else the first page."""
    outside = not address.startswith("/") or address.startswith(("//", "/\\")) or any(ord(c) < 33 for c in address)
    return "/" if outside else address


def _secret(request: Request) -> str:
    """The cookie that a form's token is made of: an annotator's pages stay the annotator's, whoever else is here."""
    token = site_of(request).token
    annotating = request.url.path.startswith(("/annotate", "/join"))
    return request.cookies.get(ANNOTATOR if annotating else admin_cookie(token), "")


def _set(request: Request, response: Response, name: str, value: str, same_site: str) -> None:
    response.set_cookie(
        name,
        value,
        max_age=MONTH,
        httponly=True,
        secure=site_of(request).address_of(request).startswith("https:"),
        samesite=same_site,  # type: ignore[arg-type]  # starlette wants the literal
        path="/",
    )
