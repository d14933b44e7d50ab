"""From a template and values to a page; everything that is put in is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import ChoiceLoader, Environment, FileSystemLoader

from exegete.reports.highlighted import highlight
from exegete.web.authentication import is_admin, make_csrf_token
from exegete.web.human_study.texts import make_admin_translator, make_translator
from exegete.web.site import get_site

ROOM = Path(str(files("exegete.web")))
SCRIPTS = {
    "chat.js": ROOM / "static" / "chat.js",
    "explore.js": ROOM / "static" / "explore.js",
    "annotate.js": ROOM / "static" / "annotate.js",
    "report.js": Path(str(files("exegete.reports"))) / "templates" / "report.js",
}


@cache
def templates() -> Environment:
    """Our templates, and those of reports."""
    base = highlight.template_environment()
    loaders = [FileSystemLoader(ROOM / "templates"), *([base.loader] if base.loader else [])]
    return base.overlay(loader=ChoiceLoader(loaders))


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page. Templates also see `site`, `admin` (whether the admin asks), `csrf`, `here` (the path), `lang`, `t`."""
    lang = values.pop("lang", "en")
    told = {"lang": lang, "t": make_translator(lang), "say": make_admin_translator(lang)}
    shared = {"site": get_site(request), "admin": is_admin(request), "here": request.url.path} | told
    csrf = values.pop("csrf", None) or make_csrf_token(request)
    text = templates().get_template(f"{template}.html.j2").render(**shared, csrf=csrf, **values)
    return HTMLResponse(text, status)


def render_fragment(template: str, **values: Any) -> str:
    """A part of a page."""
    return templates().get_template(f"{template}.html.j2").render(**values)


def make_download(content: bytes, name: str, media: str) -> Response:
    """A response that the browser saves as a file, under a safe name."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name)
    return Response(content, media_type=media, headers={"content-disposition": f'attachment; filename="{safe}"'})


@cache
def load_assets() -> Mapping[str, tuple[bytes, str]]:
    """The style sheet and scripts by name, with their media types: all there is, so that no path is ever looked up."""
    found = {name: (path.read_bytes(), "text/javascript; charset=utf-8") for name, path in SCRIPTS.items()}
    style = templates().get_template("site.css.j2").render()
    return found | {"style.css": (style.encode(), "text/css; charset=utf-8")}
