"""Pages of studies for the admin: creation, invitations, progress, results and exports."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expound.data.readers.argilla import read_records
from expound.data.readers.label_studio import read_tasks
from expound.errors import ExpoundError, check_choice
from expound.serve import authentication
from expound.serve.pages import make_download, render_page
from expound.serve.settings import MAX_DIGITS
from expound.serve.site import get_site
from expound_people import projects
from expound_people.exports import get_exports, run_export
from expound_people.items import make_marked_items, select_comparison_items
from expound_people.kinds import KINDS
from expound_people.origin import make_follow_up_commands
from expound_people.participation import count_people, find_excluded, load_participations
from expound_people.protocol.admission import COMPLETE
from expound_people.protocol.file import digest_protocol
from expound_people.reporting import fit_effects
from expound_people.results import compute_findings, load_marked_examples
from expound_people.services import get_pages, get_storage
from expound_people.tables import Annotator, AnnotatorAnswer, Item, Project, is_storable
from expound_people.texts import choose_language

router = APIRouter(prefix="/studies")
FORMATS = {"label-studio": read_tasks, "argilla": read_records}
MAX_EXAMPLES = 500


@router.get("")
def list_studies(request: Request) -> Response:
    """Show all studies, and forms to create one."""
    with get_storage(request).read_session() as session:
        studies = [(project, _count_progress(session, project)) for project in session.scalars(select(Project))]
        return render_page(
            request,
            "studies",
            lang=_get_language(request),
            projects=studies,
            kinds=KINDS,
            # Changed versions need a model to answer them; a stored result has none.
            offered=[kind for kind in KINDS.values() if not kind.has_changes],
            sources=list(get_pages(request).results),
            formats=FORMATS,
        )


@router.post("")
def create_study(request: Request, form: authentication.CheckedForm) -> Response:
    """Create a study from the examples of a result."""
    pages, name = get_pages(request), authentication.get_field(form, "name").strip()
    source = authentication.get_field(form, "source")
    check_choice("result", source, pages.results)
    limit, seed = _read_count(form, "limit", 20, MAX_EXAMPLES), _read_count(form, "seed", 0, 2**31 - 1, minimum=0)
    comparison = pages.results[source]
    with pages.storage.write_session() as session:
        projects.create_project(
            session,
            name,
            select_comparison_items(comparison, limit),
            authentication.get_field(form, "kind"),
            question=authentication.get_field(form, "question")[:2000],
            labels=comparison.config.get("labels", ()),
            seed=seed,
        )
    return RedirectResponse(f"/studies/{name}", 303)


@router.post("/import")
def import_marks(request: Request, form: authentication.CheckedForm, file: authentication.Upload) -> Response:
    """Create a study from texts that were marked with another tool, with the marks."""
    site, name = get_site(request), authentication.get_field(form, "name").strip()
    form_name = authentication.get_field(form, "format")
    check_choice("format", form_name, FORMATS)
    try:
        content = json.loads(file)
    # Deeply nested JSON exceeds Python's recursion limit.
    except (ValueError, RecursionError) as error:
        raise ExpoundError(f"the file is not JSON: {error}") from None
    if not _is_storable(content):
        raise ExpoundError("the file has a character that cannot be stored: NUL, or half of a surrogate pair")
    examples = FORMATS[form_name](content, "the file")
    lengths = [max(map(len, example.texts), default=0) for example in examples]
    if len(examples) > site.limits.file_examples or any(longest > site.limits.text_length for longest in lengths):
        bounds = f"{site.limits.file_examples} examples of {site.limits.text_length} characters"
        raise ExpoundError(f"the file has more than {bounds}")
    with get_storage(request).write_session() as session:
        projects.create_project(session, name, make_marked_items(examples), "highlight")
    return RedirectResponse(f"/studies/{name}", 303)


def _is_storable(content: Any) -> bool:
    """Return whether all texts in a JSON value can be stored."""
    if isinstance(content, dict):
        return all(is_storable(key) and _is_storable(value) for key, value in content.items())
    if isinstance(content, list):
        return all(map(_is_storable, content))
    return not isinstance(content, str) or is_storable(content)


@router.get("/{name}")
def show_study(request: Request, name: str) -> Response:
    """Show a study with its annotators and their progress."""
    return _render_study(request, name)


@router.post("/{name}/invitations")
def invite_annotators(request: Request, name: str, form: authentication.CheckedForm) -> Response:
    """Invite annotators; the links are shown on this response only."""
    with get_storage(request).write_session() as session:
        project = projects.find_project(session, name)
        names = [line.strip() for line in authentication.get_field(form, "names").splitlines() if line.strip()]
        tokens = projects.invite_annotators(session, project, names)
    base = get_site(request).address_of(request)
    return _render_study(request, name, links={person: f"{base}/join/{token}" for person, token in tokens.items()})


@router.post("/{name}/invitations/{annotator}/revoke")
def revoke_invitation(request: Request, name: str, annotator: int, form: authentication.CheckedForm) -> Response:
    """Revoke an annotator's invitation, so that its link no longer works."""
    with get_storage(request).write_session() as session:
        projects.revoke_invitation(session, projects.find_project(session, name), annotator)
    return RedirectResponse(f"/studies/{name}", 303)


@router.get("/{name}/results")
def show_results(request: Request, name: str) -> Response:
    """Show the study's results so far."""
    with get_storage(request).read_session() as session:
        project = projects.find_project(session, name)
        return render_page(
            request,
            "study_results",
            lang=_get_language(request),
            project=project,
            kind=KINDS[project.kind],
            findings=compute_findings(session, project, find_excluded(session, project)),
            model=fit_effects(session, project),
            people=count_people(session, project),
        )


@router.get("/{name}/export/{file}")
def export_answers(request: Request, name: str, file: str) -> Response:
    """Return the study's answers as a file."""
    with get_storage(request).read_session() as session:
        export, content = run_export(session, projects.find_project(session, name), file)
    return make_download(content, f"{name}-{file}", export.media)


def _render_study(request: Request, name: str, links: dict[str, str] | None = None) -> Response:
    with get_storage(request).read_session() as session:
        project = projects.find_project(session, name)
        return render_page(
            request,
            "study",
            lang=_get_language(request),
            project=project,
            kind=KINDS[project.kind],
            people=_count_answers(session, project),
            progress=_count_progress(session, project),
            methods=project.methods,
            exports=get_exports(project),
            loop=make_follow_up_commands(get_storage(request).engine.url, name, project.origin),
            marked=sum(bool(example.marks) for example in load_marked_examples(session, project)),
            links=links or {},
            participations={entry.person.id: entry for entry in load_participations(session, project)},
            take=f"{get_site(request).address_of(request)}/take/{quote(name)}" if project.protocol else "",
            digest=digest_protocol(project.protocol or ""),
        )


def _count_answers(session: Session, project: Project) -> list[tuple[Annotator, int]]:
    """Return every annotator and the number of their answers."""
    count = select(AnnotatorAnswer.annotator_id, func.count()).group_by(AnnotatorAnswer.annotator_id)
    counts: dict[int, int] = {row[0]: row[1] for row in session.execute(count)}
    return [(person, counts.get(person.id, 0)) for person in project.annotators]


def _count_progress(session: Session, project: Project) -> dict[str, int]:
    """Return the numbers of examples, active annotators, and answers, and of `all` answers that are expected."""
    is_studied = (Item.project_id == project.id, Item.role == "")
    examples = session.scalars(select(func.count(Item.id)).where(*is_studied)).one()
    answers = session.scalars(select(func.count(AnnotatorAnswer.id)).join(Item).where(*is_studied)).one()
    people = [person for person in project.annotators if person.revoked is None and person.status in ("", COMPLETE)]
    # Lists of items contain the attention checks, which do not count as answers.
    checks = sum(item.role == "check" for item in project.known)
    expected = 0
    for person in people:
        expected += examples if person.items is None else len(person.items) - checks
    phases = len(KINDS[project.kind].phases)
    return {"examples": examples, "people": len(people), "answers": answers, "all": expected * phases}


def _get_language(request: Request) -> str:
    """Return the language of the admin's pages, which the browser's settings decide."""
    return choose_language(request.headers.get("accept-language", ""))


def _read_count(form: authentication.Form, name: str, default: int, maximum: int, minimum: int = 1) -> int:
    # `isdecimal` refuses signs, and the limit of digits bounds the work of `int`.
    text: Any = authentication.get_field(form, name, str(default)) or str(default)
    if not text.isdecimal() or len(text) > MAX_DIGITS or not minimum <= int(text) <= maximum:
        raise ExpoundError(f"expected a number from {minimum} to {maximum} as {name}, got {text!r:.40}")
    return int(text)
