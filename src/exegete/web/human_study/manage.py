"""The admin's pages of studies: make one, invite, watch, read the results, take the answers away."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from exegete.data.argilla import read_records
from exegete.data.label_studio import read_tasks
from exegete.errors import ExegeteError, unknown
from exegete.web import guard
from exegete.web.human_study import projects
from exegete.web.human_study.cases import compared, marked_cases
from exegete.web.human_study.exports import exported, offered
from exegete.web.human_study.kinds import KINDS
from exegete.web.human_study.origin import loop_commands
from exegete.web.human_study.people import counts, left_out, taking
from exegete.web.human_study.protocol.admission import COMPLETE
from exegete.web.human_study.protocol.file import digest_of
from exegete.web.human_study.reporting import effects
from exegete.web.human_study.results import findings, marked_examples
from exegete.web.human_study.tables import Annotator, Answer, Item, Project
from exegete.web.human_study.texts import preferred
from exegete.web.pages import download, page
from exegete.web.settings import DIGITS
from exegete.web.site import Site, site_of

router = APIRouter(prefix="/studies")
FORMATS = {"label-studio": read_tasks, "argilla": read_records}
MOST_EXAMPLES = 500


@router.get("")
def listing(request: Request) -> Response:
    """All studies, and forms for a new one."""
    site = site_of(request)
    with site.studies.reading() as session:
        found = [(project, _progress(session, project)) for project in session.scalars(select(Project))]
        of_results = [kind for kind in KINDS.values() if not kind.changes]
        values: dict[str, Any] = {"kinds": KINDS, "offered": of_results, "sources": _sources(site), "formats": FORMATS}
        return page(request, "studies", lang=_language(request), projects=found, **values)


@router.post("")
def create(request: Request, form: guard.CheckedForm) -> Response:
    """A study of the examples of a result."""
    site, name = site_of(request), guard.one(form, "name").strip()
    sources = _sources(site)
    source = guard.one(form, "source")
    if source not in sources:
        raise unknown("result", source, sources)
    limit, seed = _count(form, "limit", 20, MOST_EXAMPLES), _count(form, "seed", 0, 2**31 - 1, least=0)
    comparison = site.results[source].comparison
    chosen = compared(comparison, limit)
    with site.studies.writing() as session:
        projects.create(
            session,
            name,
            chosen,
            guard.one(form, "kind"),
            question=guard.one(form, "question")[:2000],
            labels=comparison.config.get("labels", ()),
            seed=seed,
        )
    return RedirectResponse(f"/studies/{name}", 303)


@router.post("/import")
def import_marks(request: Request, form: guard.CheckedForm, file: guard.Upload) -> Response:
    """A study of texts that were marked elsewhere, with the marks."""
    site, name, form_name = site_of(request), guard.one(form, "name").strip(), guard.one(form, "format")
    if form_name not in FORMATS:
        raise unknown("format", form_name, FORMATS)
    try:
        content = json.loads(file)
    except (ValueError, RecursionError) as error:
        raise ExegeteError(f"the file is not JSON: {error}") from None
    examples = FORMATS[form_name](content, "the file")
    if len(examples) > site.limits.examples or any(len(t) > site.limits.text for e in examples for t in e.texts):
        bounds = f"{site.limits.examples} examples of {site.limits.text} characters"
        raise ExegeteError(f"the file has more than {bounds}")
    with site.studies.writing() as session:
        projects.create(session, name, marked_cases(examples), "highlight")
    return RedirectResponse(f"/studies/{name}", 303)


@router.get("/{name}")
def overview(request: Request, name: str) -> Response:
    """A study: who is invited, and how far they are."""
    return _overview(request, name)


@router.post("/{name}/invitations")
def invite(request: Request, name: str, form: guard.CheckedForm) -> Response:
    """New invitations; their links are shown once."""
    with site_of(request).studies.writing() as session:
        project = projects.find(session, name)
        given = [line.strip() for line in guard.one(form, "names").splitlines() if line.strip()]
        tokens = projects.invite(session, project, given)
    base = site_of(request).address_of(request)
    return _overview(request, name, links={person: f"{base}/join/{token}" for person, token in tokens.items()})


@router.post("/{name}/invitations/{annotator}/revoke")
def revoke(request: Request, name: str, annotator: int, form: guard.CheckedForm) -> Response:
    """Revokes an annotator's invitation, so that its link no longer works."""
    with site_of(request).studies.writing() as session:
        projects.revoke(session, projects.find(session, name), annotator)
    return RedirectResponse(f"/studies/{name}", 303)


@router.get("/{name}/results")
def results(request: Request, name: str) -> Response:
    """The page with the study's results so far."""
    with site_of(request).studies.reading() as session:
        project = projects.find(session, name)
        found = findings(session, project, left_out(session, project))
        model = effects(session, project) if project.kind != "highlight" else None
        people = counts(taking(session, project))
        return page(
            request,
            "study_results",
            lang=_language(request),
            project=project,
            kind=KINDS[project.kind],
            found=found,
            model=model,
            people=people,
        )


@router.get("/{name}/export/{file}")
def export(request: Request, name: str, file: str) -> Response:
    """The answers as a file."""
    with site_of(request).studies.reading() as session:
        made, content = exported(session, projects.find(session, name), file)
    return download(content, f"{name}-{file}", made.media)


def _overview(request: Request, name: str, links: dict[str, str] | None = None) -> Response:
    with site_of(request).studies.reading() as session:
        project = projects.find(session, name)
        return page(
            request,
            "study",
            lang=_language(request),
            project=project,
            kind=KINDS[project.kind],
            people=_people(session, project),
            progress=_progress(session, project),
            methods=sorted({each.method for item in project.items[:1] for each in item.explanations}),
            exports=offered(project),
            loop=loop_commands(site_of(request).studies.engine.url, name, project.origin),
            marked=sum(bool(each.marks) for each in marked_examples(session, project)),
            links=links or {},
            taking={each.person.id: each for each in taking(session, project)},
            take=f"{site_of(request).address_of(request)}/take/{quote(name)}" if project.protocol else "",
            digest=digest_of(project.protocol or ""),
        )


def _people(session: Session, project: Project) -> list[tuple[Annotator, int]]:
    """Every annotator and how many answers there are."""
    count = select(Answer.annotator_id, func.count()).group_by(Answer.annotator_id)
    answered = {row[0]: row[1] for row in session.execute(count)}
    return [(person, answered.get(person.id, 0)) for person in project.annotators]


def _progress(session: Session, project: Project) -> dict[str, int]:
    """How many examples, annotators, answers, and answers there will be."""
    examples = (
        session.scalar(select(func.count()).select_from(Item).where(Item.project_id == project.id, Item.role == ""))
        or 0
    )
    answered = session.scalar(
        select(func.count()).select_from(Answer).join(Item).where(Item.project_id == project.id, Item.role == "")
    )
    people = [person for person in project.annotators if person.revoked is None and person.status in ("", COMPLETE)]
    checks = sum(item.role == "check" for item in project.known)
    asked = sum(examples if person.items is None else len(person.items) - checks for person in people)
    phases = len(KINDS[project.kind].phases)
    return {"examples": examples, "people": len(people), "answers": answered or 0, "all": asked * phases}


def _language(request: Request) -> str:
    """The language that the admin's browser asks for."""
    return preferred(request.headers.get("accept-language", ""))


def _sources(site: Site) -> list[str]:
    """The results that have attributions to make a study of."""
    return [name for name, result in site.results.items() if result.explained]


def _count(form: guard.Form, name: str, default: int, most: int, least: int = 1) -> int:
    text: Any = guard.one(form, name, str(default)) or str(default)
    if not text.isdecimal() or len(text) > DIGITS or not least <= int(text) <= most:
        raise ExegeteError(f"expected a number from {least} to {most} as {name}, got {text!r:.40}")
    return int(text)
