"""Pages made of templates and values. Jinja escapes every value, so text from outside stays text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader

from expound.reports.highlighted import highlight
from expound.serve.authentication import is_admin, make_csrf_token
from expound.serve.site import get_site
from expound_people.texts import make_admin_translator, make_translator

ROOM = Path(str(files("expound.serve")))
PEOPLE = Path(str(files("expound_people")))
SCRIPTS = {
    "explore.js": ROOM / "static" / "explore.js",
    "annotate.js": PEOPLE / "static" / "annotate.js",
    "report.js": Path(str(files("expound.reports"))) / "templates" / "report.js",
}


@cache
def load_templates() -> Environment:
    """Return the environment of the web templates, which can include the templates of reports."""
    reports = highlight.template_environment()
    loaders: list[BaseLoader] = [FileSystemLoader(ROOM / "templates"), FileSystemLoader(PEOPLE / "templates")]
    if reports.loader:
        loaders.append(reports.loader)
    # An overlay keeps the filters and the autoescaping of reports, and leaves their environment unchanged.
    return reports.overlay(loader=ChoiceLoader(loaders))


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page made of a template.

    Besides `values`, the template sees `site`, `admin` (whether the admin is signed in), `csrf` (the token of forms),
    `here` (the path of the request), `lang`, and the translators `t` (annotators' pages) and `say` (admin's pages).
    """
    lang = values.pop("lang", "en")
    csrf = values.pop("csrf", None) or make_csrf_token(request)
    text = render_fragment(
        template,
        site=get_site(request),
        admin=is_admin(request),
        here=request.url.path,
        lang=lang,
        t=make_translator(lang),
        say=make_admin_translator(lang),
        csrf=csrf,
        **values,
    )
    return HTMLResponse(text, status)


def render_fragment(template: str, **values: Any) -> str:
    """Return the HTML of a template as text."""
    return load_templates().get_template(f"{template}.html.j2").render(**values)


def make_download(content: bytes, name: str, media: str) -> Response:
    """Return a response that the browser saves as a file."""
    # A quote or line end in the name would add to the header; a slash would suggest a folder.
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    return Response(content, media_type=media, headers={"content-disposition": f'attachment; filename="{safe}"'})


@cache
def load_assets() -> Mapping[str, tuple[bytes, str]]:
    """Return the content and media type of the style sheet and of each script, by file name."""
    # Requests look names up here and never open a path, so that no address can reach another file.
    assets = {name: (path.read_bytes(), "text/javascript; charset=utf-8") for name, path in SCRIPTS.items()}
    style = load_templates().get_template("site.css.j2").render()
    return assets | {"style.css": (style.encode(), "text/css; charset=utf-8")}
