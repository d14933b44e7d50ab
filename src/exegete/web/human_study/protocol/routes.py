"""Requests of people who take part by a protocol: beginning, steps, withdrawal."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web import guard
from exegete.web.busy import written
from exegete.web.human_study.annotate import open_progress, read_seconds
from exegete.web.human_study.projects import find_annotator, find_project
from exegete.web.human_study.protocol import stages, step_pages
from exegete.web.human_study.protocol.admission import StudyFullError, Visitor, admit, read_visitor
from exegete.web.human_study.protocol.file import ExitPart, Protocol, digest_protocol, parse_protocol
from exegete.web.human_study.tables import Annotator, Project
from exegete.web.human_study.texts import make_translator, translate_error
from exegete.web.pages import page
from exegete.web.site import site_of

router = APIRouter()


@router.get("/take/{name}")
def show_start(request: Request, name: str) -> Response:
    """The study's first page; whoever has begun on this device goes on."""
    with site_of(request).studies.read_session() as session:
        project, protocol = _load_study(session, name)
        who = read_visitor(protocol, request.query_params)
        if _find_returning_annotator(request, session, project, who) is not None:
            return RedirectResponse("/annotate", 303)
        return page(
            request,
            "take",
            lang=protocol.language,
            protocol=protocol,
            preview=who.preview,
            digest=digest_protocol(project.protocol or ""),
            csrf=guard.csrf_token(request, _get_address(request)),
        )


@router.post("/take/{name}")
async def begin_study(request: Request, name: str, form: guard.AnyForm) -> Response:
    """Lets a person in, if one more is wanted."""
    return await written(lambda: _admit_visitor(request, name, form))


def _admit_visitor(request: Request, name: str, form: guard.Form) -> Response:
    with site_of(request).studies.write_session() as session:
        project, protocol = _load_study(session, name)
        text = make_translator(protocol.language)
        if not guard.same(guard.one(form, "csrf"), guard.csrf_token(request, _get_address(request))):
            raise HTTPException(403, text("not_begun"))
        who = read_visitor(protocol, request.query_params)
        token = request.cookies.get(guard.ANNOTATOR, "")
        if _find_returning_annotator(request, session, project, who) is None:
            try:
                token = "" if who.preview else admit(session, project, protocol, who)
            except StudyFullError:
                token = ""
        if not token:
            return page(request, "take_end", lang=protocol.language, told=[text("full")], out=ExitPart(), progress=None)
    response = RedirectResponse("/annotate", 303)
    guard.join(request, response, token)
    return response


@router.post("/annotate/step/{step}")
async def submit_step(request: Request, step: str, form: guard.CheckedForm) -> Response:
    """Keeps what a person says of a step."""
    return await written(lambda: _save_submission(request, step, form))


def _save_submission(request: Request, step: str, form: guard.Form) -> Response:
    with open_progress(request, writing=True) as (session, progress):
        protocol = progress.protocol
        if protocol is None or step not in stages.STEP_READERS:
            raise HTTPException(404, "There is no such step.")
        if step_pages.get_stage(session, progress, protocol) != step:
            raise step_pages.WrongStageError  # sent twice, or from an old page
        try:
            stages.save_step(session, progress, protocol, step, form, read_seconds(form))
        except ExegeteError as error:
            return step_pages.render_step(
                request, session, progress, protocol, step, translate_error(error, progress.language), form=form
            )
        session.flush()
        step_pages.finish_if_done(session, progress)
    return RedirectResponse("/annotate", 303)


@router.get("/annotate/step/picture")
def get_picture(request: Request) -> Response:
    """The picture of the instructions' example."""
    with open_progress(request) as (_, progress):
        if progress.protocol is None:
            raise HTTPException(404, "This example has no picture.")
        return Response(step_pages.get_example_picture(progress.protocol), media_type="image/png")


@router.post("/annotate/withdraw")
async def withdraw_annotator(request: Request, form: guard.CheckedForm) -> Response:
    """Deletes all that a person said."""
    return await written(lambda: _delete_annotator(request))


def _delete_annotator(request: Request) -> Response:
    with open_progress(request, writing=True) as (session, progress):
        if progress.protocol is None:
            raise HTTPException(404, "Ask whoever invited you to delete your answers.")
        translate_error = [make_translator(progress.language)("withdrawn")]
        stages.withdraw(session, progress.annotator)
    response = page(request, "take_end", lang=progress.language, told=translate_error, out=ExitPart(), progress=None)
    response.delete_cookie(guard.ANNOTATOR, path="/")
    return response


def _load_study(session: Session, name: str) -> tuple[Project, Protocol]:
    project = find_project(session, name)
    if project.protocol is None:
        raise ExegeteError("this study has no protocol: people are invited to it")
    return project, parse_protocol(project.protocol)


def _find_returning_annotator(request: Request, session: Session, project: Project, who: Visitor) -> Annotator | None:
    """The person whose browser this is, in this study and, on a platform, of these parameters."""
    person = find_annotator(session, request.cookies.get(guard.ANNOTATOR, ""))
    if person is None or person.project_id != project.id:
        return None
    return person if not who.source or person.source == dict(who.source) else None


def _get_address(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"
