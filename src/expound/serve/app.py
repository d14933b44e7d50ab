"""The FastAPI application and its server: the routes of all pages, sign-in, and the pages that report errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from expound.errors import ExpoundError
from expound.serve import api, authentication
from expound.serve.api_requests import RequestError
from expound.serve.explore.routes import router as explore
from expound.serve.pages import load_assets, render_page
from expound.serve.security_headers import SecurityMiddleware
from expound.serve.settings import MAX_HEADER_BYTES, UPLOAD_PATHS, BusyError, TimeoutProtocol, WrongTokens
from expound.serve.site import Site, get_site

RETRY_SECONDS = 2
"""Seconds after which clients may repeat a request that was refused because the server was busy."""
public = APIRouter()
"""Routes that need no sign-in."""


def create_app(site: Site) -> FastAPI:
    """Return the FastAPI application that serves the pages of a site.

    Only the sign-in page and pages that the site's application makes public need no admin. The handlers translate
    between HTTP and the services of `site`, and hold no state.
    """
    # The interactive API documentation loads scripts from a CDN and would list the admin's routes to strangers.
    # Redirects to an address with or without a slash would carry a token in the query along, and name the host of the
    # request, which behind a proxy has http instead of https.
    app = FastAPI(
        title="expound",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_close_queues_at_shutdown,
    )
    app.state.wrong_tokens = WrongTokens(site.limits.wrong_tokens, site.limits.wrong_token_seconds)
    app.state.site, app.state.assets = site, load_assets(site.application.scripts)
    app.include_router(public)
    admin = [Depends(authentication.require_admin)]
    if site.explorer is not None:
        app.include_router(explore, dependencies=admin)
    if site.api_token:
        app.include_router(api.router)
    for router in site.application.routes:
        app.include_router(router)
    for router in site.application.admin_routes:
        app.include_router(router, dependencies=admin)
    app.add_exception_handler(RequestError, api.handle_request_error)
    app.add_exception_handler(ExpoundError, _handle_invalid_input)
    app.add_exception_handler(StarletteHTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(authentication.SignInRequiredError, _handle_sign_in_required)
    app.add_exception_handler(BusyError, _handle_busy)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    app.add_exception_handler(Exception, _handle_unexpected_error)
    for error, handler in site.application.error_handlers.items():
        app.add_exception_handler(error, handler)
    uploads = UPLOAD_PATHS | site.application.upload_paths
    app.add_middleware(SecurityMiddleware, hosts=site.hosts, limits=site.limits, upload_paths=uploads)
    return app


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


@asynccontextmanager
async def _close_queues_at_shutdown(app: FastAPI) -> AsyncIterator[None]:
    """Stop the work with models when the server stops; the process could not end before it otherwise."""
    yield
    explorer = app.state.site.explorer
    if explorer is not None:
        explorer.work.close()


@public.get("/static/{name}")
def serve_asset(request: Request, name: str) -> Response:
    """Serve the style sheet or a script."""
    assets = request.app.state.assets
    if name not in assets:
        raise HTTPException(404, "There is no such file.")
    content, media = assets[name]
    return Response(content, media_type=media, headers={"cache-control": "no-cache"})


@public.get("/favicon.ico")
def serve_favicon() -> Response:
    """Answer that there is no favicon (204), so that browsers log no error."""
    return Response(status_code=204)


@public.get("/sign-in")
def show_sign_in(request: Request, token: str = "", next: str = "/") -> Response:
    """Show the page that asks for the admin's token, or sign the admin in if the address has it."""
    if token and authentication.check_secret(request, token, get_site(request).token):
        return _sign_admin_in(request, next)
    return render_page(
        request,
        "sign_in",
        next=authentication.make_local_address(next),
        wrong=bool(token),
        status=403 if token else 200,
    )


@public.post("/sign-in")
def sign_in(request: Request, form: authentication.UncheckedForm) -> Response:
    """Sign the admin in with the token in the form."""
    # No CSRF token here: there is no cookie yet, and a forged form would have to know the admin's token.
    after = authentication.get_field(form, "next", "/")
    token = authentication.get_field(form, "token").strip()
    if authentication.check_secret(request, token, get_site(request).token):
        return _sign_admin_in(request, after)
    return render_page(request, "sign_in", next=authentication.make_local_address(after), wrong=True, status=403)


@public.get("/", dependencies=[Depends(authentication.require_admin)])
def redirect_home(request: Request) -> Response:
    """Redirect to the application's first page, else to the first one of the menu."""
    site = get_site(request)
    return RedirectResponse(site.application.home or site.navigation[0][0], 303)


def _sign_admin_in(request: Request, after: str) -> Response:
    response = RedirectResponse(authentication.make_local_address(after), 303)
    authentication.set_admin_cookie(request, response)
    return response


def _handle_invalid_input(request: Request, error: Exception) -> Response:
    return _respond_with_message(request, 422, str(error))


def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    message = "This page does not exist." if error.detail == "Not Found" else str(error.detail)
    response = _respond_with_message(request, error.status_code, message)
    if error.status_code == 429:
        response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


def _handle_validation_error(request: Request, error: Exception) -> Response:
    return _respond_with_message(request, 422, "A value in the address or the form has the wrong type.")


def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    # The message of an unexpected error can hold texts, paths or passwords: only the server's log gets it.
    return _respond_with_message(request, 500, "Something went wrong in the server; its log has the details.")


def _handle_sign_in_required(request: Request, error: Exception) -> Response:
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return _respond_with_message(request, 401, "Sign in with the token that the server printed.")
    return RedirectResponse(authentication.make_sign_in_address(request), 303)


def _handle_busy(request: Request, error: Exception) -> Response:
    form = getattr(request.state, "form", None)
    if request.method == "GET" or not form or request.state.files or not _accepts_html(request):
        response = _respond_with_message(request, 503, f"The server is busy: {error}. Try again in a moment.")
    else:
        # The page holds the form's fields, so that the same answer can be sent again.
        response = render_page(request, "again", form=form, status=503)
    response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


def _handle_disconnect(request: Request, error: Exception) -> Response:
    # Nobody reads this response, but a handler has to return one; nginx logs 499 for clients that have left.
    return Response(status_code=499)


def _accepts_html(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "text/html")


def _respond_with_message(request: Request, status: int, message: str) -> Response:
    if request.url.path.startswith(api.PREFIX):
        return api.make_error_response(status, message)
    if not _accepts_html(request):
        return JSONResponse({"error": message}, status)
    return render_page(request, "message", title="", message=message, status=status)
