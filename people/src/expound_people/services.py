"""What the handlers of pages need of the server: its studies, and the cookie of annotators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import Request, Response

from expound.evaluation.compare.comparison import Comparison
from expound.serve import Application
from expound.serve.authentication import set_cookie
from expound.serve.site import get_site
from expound_people.storage import Storage

ANNOTATOR_COOKIE = "expound-annotator"


@dataclass(frozen=True, kw_only=True)
class StudyPages(Application):
    """The pages of human studies, with the database and the comparisons that studies can be made from."""

    storage: Storage
    results: Mapping[str, Comparison] = field(default_factory=dict)


def get_pages(request: Request) -> StudyPages:
    """Return the application that handles the request."""
    pages = get_site(request).application
    assert isinstance(pages, StudyPages)
    return pages


def get_storage(request: Request) -> Storage:
    """Return the database of studies."""
    return get_pages(request).storage


def set_annotator_cookie(request: Request, response: Response, token: str) -> None:
    """Sign the annotator in with an invitation token."""
    # "lax", because an invitation is opened from a mail or a recruitment site; "strict" would hold the cookie back.
    set_cookie(request, response, ANNOTATOR_COOKIE, token, "lax")
