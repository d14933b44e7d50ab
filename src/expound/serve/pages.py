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
from expound.serve.authentication import is_admin, is_visitor_page, make_csrf_token
from expound.serve.site import get_site

ROOM = Path(str(files("expound.serve")))
SCRIPTS = {
    "explore.js": ROOM / "static" / "explore.js",
    "report.js": Path(str(files("expound.reports"))) / "templates" / "report.js",
}


@cache
def load_templates(folder: Path | None = None) -> Environment:
    """Return the environment of the web templates: an application's, the library's, and the reports'."""
    reports = highlight.template_environment()
    loaders: list[BaseLoader] = [FileSystemLoader(ROOM / "templates")]
    if folder is not None:
        loaders.append(FileSystemLoader(folder))
    if reports.loader:
        loaders.append(reports.loader)
    # An overlay keeps the filters and the autoescaping of reports, and leaves their environment unchanged.
    return reports.overlay(loader=ChoiceLoader(loaders))


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page made of a template.

    Besides `values`, the template sees `site`, `admin` (whether the admin is signed in), `csrf` (the token of forms),
    `here` (the path of the request), `lang`, `layout` (the template to extend where any page can be shown), and the
    values of the site's application.
    """
    site = get_site(request)
    lang = values.pop("lang", "en")
    csrf = values.pop("csrf", None) or make_csrf_token(request)
    layout = site.application.visitor_layout if is_visitor_page(request) else "base.html.j2"
    text = render_fragment(
        template,
        site.application.templates,
        site=site,
        admin=is_admin(request),
        here=request.url.path,
        lang=lang,
        layout=layout,
        csrf=csrf,
        **site.application.template_values(lang),
        **values,
    )
    return HTMLResponse(text, status)


def render_fragment(template: str, folder: Path | None = None, **values: Any) -> str:
    """Return the HTML of a template as text; `folder` has the templates of an application."""
    return load_templates(folder).get_template(f"{template}.html.j2").render(**values)


def make_download(content: bytes, name: str, media: str) -> Response:
    """Return a response that the browser saves as a file."""
    # A quote or line end in the name would add to the header; a slash would suggest a folder.
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    return Response(content, media_type=media, headers={"content-disposition": f'attachment; filename="{safe}"'})


def load_assets(scripts: Mapping[str, Path]) -> Mapping[str, tuple[bytes, str]]:
    """Return the content and media type of the style sheet and of each script, by file name.

    `scripts`: an application's scripts.
    """
    # Requests look names up here and never open a path, so that no address can reach another file.
    assets = {}
    for name, path in (SCRIPTS | dict(scripts)).items():
        assets[name] = (path.read_bytes(), "text/javascript; charset=utf-8")
    style = load_templates().get_template("site.css.j2").render()
    return assets | {"style.css": (style.encode(), "text/css; charset=utf-8")}
