"""Requests of annotators of a study with a protocol: beginning, steps, withdrawal."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from expound.errors import ExpoundError
from expound.serve import authentication
from expound.serve.pages import render_page
from expound_people.annotate import open_progress, read_seconds
from expound_people.projects import find_annotator, find_project
from expound_people.protocol import stages, step_pages
from expound_people.protocol.admission import StudyFullError, Visitor, admit, read_visitor
from expound_people.protocol.file import ExitPart, Protocol, digest_protocol, parse_protocol
from expound_people.protocol.known_answers import make_planted_example
from expound_people.services import ANNOTATOR_COOKIE, get_storage, set_annotator_cookie
from expound_people.tables import Annotator, Project
from expound_people.texts import make_translator, translate_error
from expound_people.write_limit import run_write

router = APIRouter()


@router.get("/take/{name}")
def show_start(request: Request, name: str) -> Response:
    """Show a study's first page, or redirect an annotator who has already begun in this browser."""
    with get_storage(request).read_session() as session:
        project, protocol = _load_study(session, name)
        who = read_visitor(protocol, request.query_params)
        if _find_returning_annotator(request, session, project, who) is not None:
            return RedirectResponse("/annotate", 303)
        return render_page(
            request,
            "take",
            lang=protocol.language,
            protocol=protocol,
            preview=who.preview,
            digest=digest_protocol(project.protocol or ""),
            csrf=authentication.make_csrf_token(request, _get_address(request)),
        )


@router.post("/take/{name}")
async def begin_study(request: Request, name: str, form: authentication.UncheckedForm) -> Response:
    """Admit a person, unless the study is full."""
    return await run_write(lambda: _admit_visitor(request, name, form))


def _admit_visitor(request: Request, name: str, form: authentication.Form) -> Response:
    with get_storage(request).write_session() as session:
        project, protocol = _load_study(session, name)
        text = make_translator(protocol.language)
        if not authentication.is_equal_secret(
            authentication.get_field(form, "csrf"), authentication.make_csrf_token(request, _get_address(request))
        ):
            raise HTTPException(403, text("not_begun"))
        who = read_visitor(protocol, request.query_params)
        token = request.cookies.get(ANNOTATOR_COOKIE, "")
        if _find_returning_annotator(request, session, project, who) is None:
            # A visitor without a cookie is not an annotator yet; a returning person gets a new token for this device.
            try:
                token = "" if who.preview else admit(session, project, protocol, who)
            except StudyFullError:
                token = ""
        if not token:
            return _render_end(request, protocol.language, text("full"))
    response = RedirectResponse("/annotate", 303)
    set_annotator_cookie(request, response, token)
    return response


@router.post("/annotate/step/{step}")
async def submit_step(request: Request, step: str, form: authentication.CheckedForm) -> Response:
    """Save the form of a step and redirect to the current stage."""
    return await run_write(lambda: _save_submission(request, step, form))


def _save_submission(request: Request, step: str, form: authentication.Form) -> Response:
    with open_progress(request, writing=True) as (session, progress):
        protocol = progress.protocol
        if protocol is None or step not in stages.STEP_READERS:
            raise HTTPException(404, "There is no such step.")
        if stages.find_stage(session, progress.annotator, protocol) != step:
            # The form was sent twice, or from an old page: the annotator is redirected to the current stage.
            raise step_pages.WrongStageError
        try:
            stages.save_step(session, progress, protocol, step, form, read_seconds(form))
        except ExpoundError as error:
            problem = translate_error(error, progress.language)
            return step_pages.render_step(request, session, progress, protocol, step, problem, form)
        session.flush()
        stages.finish_if_done(session, progress)
    return RedirectResponse("/annotate", 303)


@router.get("/annotate/step/picture")
def get_picture(request: Request) -> Response:
    """Return the picture (PNG) of the instructions' example."""
    with open_progress(request) as (_, progress):
        example = None if progress.protocol is None else progress.protocol.instructions.example
    image = None if example is None else make_planted_example(example)[0].picture
    if image is None:
        raise HTTPException(404, "This example has no picture.")
    return Response(image, media_type="image/png")


@router.post("/annotate/withdraw")
async def withdraw_annotator(request: Request, form: authentication.CheckedForm) -> Response:
    """Delete the answers of the annotator who is signed in."""
    return await run_write(lambda: _delete_annotator(request))


def _delete_annotator(request: Request) -> Response:
    with open_progress(request, writing=True) as (session, progress):
        if progress.protocol is None:
            raise HTTPException(404, "Ask the person who invited you to delete your answers.")
        stages.withdraw(session, progress.annotator)
    response = _render_end(request, progress.language, make_translator(progress.language)("withdrawn"))
    response.delete_cookie(ANNOTATOR_COOKIE, path="/")
    return response


def _render_end(request: Request, language: str, text: str) -> Response:
    return render_page(request, "take_end", lang=language, paragraphs=[text], out=ExitPart(), progress=None)


def _load_study(session: Session, name: str) -> tuple[Project, Protocol]:
    project = find_project(session, name)
    if project.protocol is None:
        raise ExpoundError("this study has no protocol: people are invited to it")
    return project, parse_protocol(project.protocol)


def _find_returning_annotator(request: Request, session: Session, project: Project, who: Visitor) -> Annotator | None:
    """Return the annotator who is signed in in this browser, if it is in this study and with the same parameters."""
    person = find_annotator(session, request.cookies.get(ANNOTATOR_COOKIE, ""))
    if person is None or person.project_id != project.id:
        return None
    # On a shared computer another worker's link must not continue the earlier worker's participation.
    return person if not who.source or person.source == dict(who.source) else None


def _get_address(request: Request) -> str:
    # The form's token is bound to the address with its parameters, as there is no cookie to bind it to.
    return f"{request.url.path}?{request.url.query}"
