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
from exegete.web.site import get_site

ANNOTATOR_COOKIE = "exegete-annotator"
HEADER = "x-csrf-token"
MONTH = 30 * 24 * 3600

Form = Mapping[str, list[str]]
"""The text fields of a form, each with its values."""


class SignInRequiredError(Exception):
    """Nobody is signed in where an admin is needed."""


def make_admin_cookie_name(token: str) -> str:
    """The name of the admin's cookie: servers on other ports of a machine have other ones."""
    return f"exegete-admin-{sha256(token.encode()).hexdigest()[:8]}"


def compute_hmac(secret: str, what: str) -> str:
    """A keyed digest (HMAC-SHA256) of a text, which only holders of the secret can compute."""
    return hmac.new(secret.encode(), what.encode(), sha256).hexdigest()


def is_equal_secret(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def is_admin(request: Request) -> bool:
    """Whether the request comes with the admin's cookie."""
    token = get_site(request).token
    return is_equal_secret(request.cookies.get(make_admin_cookie_name(token), ""), compute_hmac(token, "admin"))


def require_admin(request: Request) -> None:
    """For pages of the admin: lets nobody else in."""
    if not is_admin(request):
        raise SignInRequiredError


def set_admin_cookie(request: Request, response: Response) -> None:
    """Makes the browser the admin's."""
    token = get_site(request).token
    _set(request, response, make_admin_cookie_name(token), compute_hmac(token, "admin"), "strict")


def set_annotator_cookie(request: Request, response: Response, token: str) -> None:
    """Makes the browser that of an annotator who was invited with this token."""
    _set(request, response, ANNOTATOR_COOKIE, token, "lax")


def make_csrf_token(request: Request, token: str | None = None) -> str:
    """The token that a form of this page has to send back: made from a cookie that no other site can read.

    `token`: an annotator's, where the cookie is not set yet.
    """
    return compute_hmac(token or _secret(request), "csrf")


async def read_checked_form(request: Request) -> Form:
    """The form of a request that changes something, if it comes from a page of ours."""
    content = await read_form(request)
    given = request.headers.get(HEADER) or "".join(content.get("csrf", [])[:1])
    if not is_equal_secret(given, make_csrf_token(request)):
        raise HTTPException(403, "This form is too old or comes from somewhere else. Load its page again.")
    return content


async def read_form(request: Request) -> Form:
    """The text fields of a form, unchecked; files are kept in `request.state.files`."""
    limits = get_site(request).limits
    form = await request.form(max_files=1, max_fields=limits.form_fields, max_part_size=limits.form_bytes)
    fields: dict[str, list[str]] = {}
    files: dict[str, UploadFile] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields.setdefault(name, []).append(value)
        else:
            files[name] = value
    request.state.files, request.state.form = files, fields
    return fields


CheckedForm = Annotated[Form, Depends(read_checked_form)]
"""A form that comes from a page of ours."""
UncheckedForm = Annotated[Form, Depends(read_form)]
"""A form that may come from anywhere."""


async def read_upload(request: Request, form: CheckedForm) -> bytes:
    """The content of the form's file."""
    file = request.state.files.get("file")
    content: bytes = b"" if file is None else await file.read()
    if not content:
        raise ExegeteError("choose a file")
    return content


Upload = Annotated[bytes, Depends(read_upload)]
"""The content of a form's file."""


def get_field(form: Form, name: str, default: str = "") -> str:
    """The first value of a field."""
    return form.get(name, [default])[0]


def make_sign_in_address(request: Request) -> str:
    """The sign-in page, which leads back to this one."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/sign-in?next={quote(here if request.method == 'GET' else '/', safe='')}"


def make_local_address(address: str) -> str:
    """The address if it is on this site, else the first page."""
    outside = not address.startswith("/") or address.startswith(("//", "/\\")) or any(ord(c) < 33 for c in address)
    return "/" if outside else address


def _secret(request: Request) -> str:
    """The cookie that a form's token is made of: an annotator's pages stay the annotator's, whoever else is here."""
    token = get_site(request).token
    annotating = request.url.path.startswith(("/annotate", "/join"))
    return request.cookies.get(ANNOTATOR_COOKIE if annotating else make_admin_cookie_name(token), "")


def _set(request: Request, response: Response, name: str, value: str, same_site: str) -> None:
    response.set_cookie(
        name,
        value,
        max_age=MONTH,
        httponly=True,
        secure=get_site(request).address_of(request).startswith("https:"),
        samesite=same_site,  # type: ignore[arg-type]  # starlette wants the literal
        path="/",
    )
