"""The pages of human studies, as an application on the web base of `expound.serve`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from expound.evaluation.compare.comparison import Comparison
from expound.serve import Application
from expound_people import annotate, manage
from expound_people.protocol import routes
from expound_people.protocol.step_pages import WrongStageError
from expound_people.services import ANNOTATOR_COOKIE, StudyPages
from expound_people.storage import Storage
from expound_people.texts import make_admin_translator, make_translator

ROOM = Path(str(files("expound_people")))


def make_application(
    storage: Storage, results: Mapping[str, Comparison] | None = None, home: str = "/studies"
) -> Application:
    """Return the pages of a storage's studies, for `Site(application=…)`.

    Args:
        storage: the database.
        results: comparisons by name, from which the admin can make studies on the page.
        home: address of the admin's first page.
    """
    return StudyPages(
        storage=storage,
        results=results or {},
        routes=(routes.router, annotate.router),
        admin_routes=(manage.router,),
        templates=ROOM / "templates",
        scripts={"annotate.js": ROOM / "static" / "annotate.js"},
        navigation=(("/studies", "Human studies"),),
        home=home,
        upload_paths=frozenset({"/studies/import"}),
        error_handlers={WrongStageError: _redirect_to_current_stage},
        template_values=_make_template_values,
        visitor_paths=("/annotate", "/join", "/take"),
        visitor_layout="people.html.j2",
        visitor_cookie=ANNOTATOR_COOKIE,
    )


def _redirect_to_current_stage(request: Request, error: Exception) -> Response:
    return RedirectResponse("/annotate", 303)


def _make_template_values(language: str) -> dict[str, Any]:
    """Return the translators: `t` for annotators' pages, `say` for the admin's."""
    return {"t": make_translator(language), "say": make_admin_translator(language)}
