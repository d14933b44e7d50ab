"""The application: rooms put together, what goes wrong made into pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as AnyHttpError
from starlette.requests import ClientDisconnect

from exegete.errors import ExegeteError
from exegete.web import authentication
from exegete.web.browse.routes import router as browse
from exegete.web.chat.routes import router as chat
from exegete.web.explore.routes import router as explore
from exegete.web.human_study.annotate import router as annotate
from exegete.web.human_study.manage import router as manage
from exegete.web.human_study.protocol.routes import router as take
from exegete.web.human_study.protocol.step_pages import WrongStageError
from exegete.web.pages import load_assets, render_page
from exegete.web.security_headers import SecurityMiddleware
from exegete.web.site import Site, get_site
from exegete.web.write_limit import BusyError

RETRY = 2
"""Seconds after which what was refused for now may be tried again."""
public = APIRouter()
"""Paths that anybody may ask for."""


def create_app(site: Site) -> FastAPI:
    """The pages of a site. Handlers translate between HTTP and the rooms' services, and hold no state.

    Every page but signing in, joining and annotating is the admin's alone.
    """
    app = FastAPI(title="exegete", docs_url=None, redoc_url=None, openapi_url=None, lifespan=_life)
    app.state.site = site
    app.include_router(public)
    admin = [Depends(authentication.require_admin)]
    if site.explorer is not None:
        app.include_router(explore, dependencies=admin)
    if site.chats is not None:
        app.include_router(chat, dependencies=admin)
    if site.results:
        app.include_router(browse, dependencies=admin)
    if site.storage is not None:
        app.include_router(take)
        app.include_router(annotate)
        app.include_router(manage, dependencies=admin)
    app.add_exception_handler(ExegeteError, _bad_input)
    app.add_exception_handler(AnyHttpError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(authentication.SignInRequiredError, _stranger)
    app.add_exception_handler(BusyError, _busy)
    app.add_exception_handler(WrongStageError, _elsewhere)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(SecurityMiddleware, hosts=site.hosts, limits=site.limits)
    return app


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """Work with models ends with the server."""
    yield
    for room in (app.state.site.explorer, app.state.site.chats):
        if room is not None:
            room.work.close()


@public.get("/static/{name}")
def asset(name: str) -> Response:
    """The style sheet, or a script."""
    if name not in load_assets():
        raise HTTPException(404, "There is no such file.")
    content, media = load_assets()[name]
    return Response(content, media_type=media, headers={"cache-control": "no-cache"})


@public.get("/favicon.ico")
def icon() -> Response:
    """An empty answer (204): there is no favicon."""
    return Response(status_code=204)


@public.get("/sign-in")
def sign_in_page(request: Request, token: str = "", next: str = "/") -> Response:
    """The page that asks for the admin's token; with the right one in the address it opens the door at once."""
    if token and authentication.is_equal_secret(token, get_site(request).token):
        return _let_in(request, next)
    return render_page(
        request,
        "sign_in",
        next=authentication.make_local_address(next),
        wrong=bool(token),
        status=403 if token else 200,
    )


@public.post("/sign-in")
def sign_in(request: Request, form: authentication.UncheckedForm) -> Response:
    """Opens the door to whoever knows the token."""
    after = authentication.get_field(form, "next", "/")
    if authentication.is_equal_secret(authentication.get_field(form, "token").strip(), get_site(request).token):
        return _let_in(request, after)
    return render_page(request, "sign_in", next=authentication.make_local_address(after), wrong=True, status=403)


@public.get("/", dependencies=[Depends(authentication.require_admin)])
def home(request: Request) -> Response:
    """The first room that is open."""
    site = get_site(request)
    rooms = (("/explore", site.explorer), ("/chat", site.chats), ("/browse", site.results), ("/studies", site.storage))
    return RedirectResponse(next(address for address, room in rooms if room), 303)


def _let_in(request: Request, after: str) -> Response:
    response = RedirectResponse(authentication.make_local_address(after), 303)
    authentication.set_admin_cookie(request, response)
    return response


def _bad_input(request: Request, error: Exception) -> Response:
    return _told(request, 422, str(error))


def _refused(request: Request, error: Exception) -> Response:
    status, detail = (error.status_code, error.detail) if isinstance(error, AnyHttpError) else (500, "")
    return _told(request, status, "There is no such page." if detail == "Not Found" else str(detail))


def _malformed(request: Request, error: Exception) -> Response:
    return _told(request, 422, "The address or form has a value that is none of its kind.")


def _broken(request: Request, error: Exception) -> Response:
    return _told(request, 500, "Something went wrong on our side; the server's log says what.")


def _stranger(request: Request, error: Exception) -> Response:
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return _told(request, 401, "Sign in with the token that the server printed.")
    return RedirectResponse(authentication.make_sign_in_address(request), 303)


def _busy(request: Request, error: Exception) -> Response:
    form = getattr(request.state, "form", None)
    if request.method == "GET" or not form or request.state.files or not _wants_page(request):
        response = _told(request, 503, f"Not now: {error}. Try again in a moment.")
    else:
        response = render_page(request, "again", form=form, status=503)
    response.headers["retry-after"] = str(RETRY)
    return response


def _elsewhere(request: Request, error: Exception) -> Response:
    return RedirectResponse("/annotate", 303)


def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "text/html")


def _told(request: Request, status: int, message: str) -> Response:
    if not _wants_page(request):
        return JSONResponse({"error": message}, status)
    return render_page(request, "message", message=message, status=status)
