"""Authentication of the admin, and protection of forms against cross-site request forgery (CSRF)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, HTTPException, Request, Response
from starlette.datastructures import UploadFile

from expound.errors import ExpoundError
from expound.serve.site import get_site

CSRF_HEADER = "x-csrf-token"
COOKIE_SECONDS = 30 * 24 * 3600

Form = Mapping[str, list[str]]
"""The text fields of a form, each with its values."""


class SignInRequiredError(Exception):
    """The page is for the admin, and the request does not come from a signed-in admin."""


def make_admin_cookie_name(token: str) -> str:
    """Return the name of the admin's cookie."""
    # Browsers share cookies between the ports of a host: the name keeps several servers on one machine apart.
    return f"expound-admin-{sha256(token.encode()).hexdigest()[:8]}"


def compute_hmac(secret: str, text: str) -> str:
    """Return the HMAC-SHA256 of a text, which only holders of the secret can compute."""
    return hmac.new(secret.encode(), text.encode(), sha256).hexdigest()


def is_equal_secret(one: str, other: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    # Cookies can contain lone surrogates, which plain UTF-8 refuses with an error.
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def require_attempt(request: Request) -> None:
    """Raise HTTPException (429) if the client's address has given too many wrong tokens, and has to wait."""
    if request.app.state.wrong_tokens.has_to_wait(_get_client_address(request)):
        raise HTTPException(429, "Too many wrong tokens came from your address. Wait a moment, and try again.")


def record_attempt(request: Request, *, is_right: bool) -> None:
    """Count a wrong token of the client's address, or forget the wrong ones after a right one."""
    wrong = request.app.state.wrong_tokens
    (wrong.forget if is_right else wrong.add)(_get_client_address(request))


def check_secret(request: Request, given: str, secret: str) -> bool:
    """Return whether a client gave the right secret; see `require_attempt` and `record_attempt`."""
    # A form that broke off before its token is no attempt to guess one.
    if not given:
        return False
    require_attempt(request)
    is_right = is_equal_secret(given, secret)
    record_attempt(request, is_right=is_right)
    return is_right


def _get_client_address(request: Request) -> str:
    return request.client.host if request.client else ""


def is_admin(request: Request) -> bool:
    """Return whether the request has the admin's cookie."""
    token = get_site(request).token
    # The cookie holds an HMAC, so that the token itself is stored in no browser.
    return is_equal_secret(request.cookies.get(make_admin_cookie_name(token), ""), compute_hmac(token, "admin"))


def require_admin(request: Request) -> None:
    """Raise SignInRequiredError unless the request comes from the admin; a dependency of the admin's pages."""
    if not is_admin(request):
        raise SignInRequiredError


def set_admin_cookie(request: Request, response: Response) -> None:
    """Sign the admin in: set the admin's cookie in the response."""
    token = get_site(request).token
    set_cookie(request, response, make_admin_cookie_name(token), compute_hmac(token, "admin"), "strict")


def make_csrf_token(request: Request, token: str | None = None) -> str:
    """Return the token that the forms of a page send back, derived from a cookie that other sites cannot read.

    `token`: a visitor's token, if the cookie is not set yet.
    """
    return compute_hmac(token or _get_csrf_secret(request), "csrf")


async def read_checked_form(request: Request) -> Form:
    """Return the text fields of a form. Raises HTTPException (403) if one of our pages did not send it."""
    content = await read_form(request)
    token = request.headers.get(CSRF_HEADER) or get_field(content, "csrf")
    if not is_equal_secret(token, make_csrf_token(request)):
        raise HTTPException(403, "This form is too old or was sent by another site. Load its page again.")
    return content


async def read_form(request: Request) -> Form:
    """Return the text fields of a form without checking its token; its files are stored in `request.state.files`."""
    limits = get_site(request).limits
    form = await request.form(max_files=1, max_fields=limits.form_fields, max_part_size=limits.form_bytes)
    fields: dict[str, list[str]] = {}
    files: dict[str, UploadFile] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            if "\0" in name or "\0" in value:
                raise HTTPException(400, "A form cannot contain NUL.")
            fields.setdefault(name, []).append(value)
        else:
            files[name] = value
    # The handler of BusyError sends the fields back to the browser, so that no input is lost.
    request.state.files, request.state.form = files, fields
    return fields


CheckedForm = Annotated[Form, Depends(read_checked_form)]
"""The fields of a form that one of our pages sent."""
UncheckedForm = Annotated[Form, Depends(read_form)]
"""The fields of a form that any site may have sent."""


async def read_upload(request: Request, form: CheckedForm) -> bytes:
    """Return the content of the uploaded file. Raises ExpoundError if it is missing or empty."""
    file = request.state.files.get("file")
    content: bytes = b"" if file is None else await file.read()
    if not content:
        raise ExpoundError("expected a file that is not empty: choose one")
    return content


Upload = Annotated[bytes, Depends(read_upload)]
"""The content of an uploaded file."""


def get_field(form: Form, name: str, default: str = "") -> str:
    """Return the first value of a field, or the default if the form does not have it."""
    return form.get(name, [default])[0]


def make_sign_in_address(request: Request) -> str:
    """Return the address of the sign-in page, which leads back to the requested page."""
    address = request.url.path
    if request.url.query:
        address += f"?{request.url.query}"
    # A form cannot be sent again by a redirect: after it, the admin starts from the first page.
    if request.method != "GET":
        address = "/"
    return f"/sign-in?next={quote(address, safe='')}"


def make_local_address(address: str) -> str:
    """Return the address if it is on this site, else "/"."""
    # Browsers read "//host" and "/\\host" as another host, and drop tabs and line ends in front of it: without this
    # check, a link to our sign-in page could lead on to a copy of it elsewhere.
    is_external = not address.startswith("/") or address.startswith(("//", "/\\"))
    if is_external or any(ord(letter) < 33 for letter in address):
        return "/"
    return address


def _get_csrf_secret(request: Request) -> str:
    """Return the cookie from which the token of forms is derived."""
    name = make_admin_cookie_name(get_site(request).token)
    # By address, not by who is signed in: an admin who tries out a visitor's page has both cookies.
    if is_visitor_page(request):
        name = get_site(request).application.visitor_cookie
    return request.cookies.get(name, "")


def is_visitor_page(request: Request) -> bool:
    """Return whether the address belongs to pages for visitors who are not the admin."""
    return request.url.path.startswith(get_site(request).application.visitor_paths)


def set_cookie(request: Request, response: Response, name: str, value: str, same_site: str) -> None:
    """Set a cookie that scripts cannot read, for 30 days."""
    response.set_cookie(
        name,
        value,
        max_age=COOKIE_SECONDS,
        # Scripts never need the cookies, so an injected one could not read them either.
        httponly=True,
        secure=get_site(request).address_of(request).startswith("https:"),
        samesite=same_site,  # type: ignore[arg-type]  # starlette expects a Literal
        path="/",
    )
