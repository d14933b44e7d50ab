"""Requests of people who take part by a protocol: beginning, steps, withdrawal."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web import guard
from exegete.web.busy import written
from exegete.web.human_study.annotate import seconds_of, signed_in
from exegete.web.human_study.projects import find, invited
from exegete.web.human_study.protocol import stages, steps
from exegete.web.human_study.protocol.admission import FullError, Visitor, admit, visitor
from exegete.web.human_study.protocol.file import Protocol, WayOut, digest_of, protocol_of
from exegete.web.human_study.tables import Annotator, Project
from exegete.web.human_study.texts import texts, told
from exegete.web.pages import page
from exegete.web.site import site_of

router = APIRouter()


@router.get("/take/{name}")
def arrive(request: Request, name: str) -> Response:
    """The study's first page; whoever has begun on this device goes on."""
    with site_of(request).studies.reading() as session:
        project, protocol = _study(session, name)
        who = visitor(protocol, request.query_params)
        if _here(request, session, project, who) is not None:
            return RedirectResponse("/annotate", 303)
        return page(
            request,
            "take",
            lang=protocol.language,
            protocol=protocol,
            preview=who.preview,
            digest=digest_of(project.protocol or ""),
            csrf=guard.csrf_token(request, _address(request)),
        )


@router.post("/take/{name}")
async def begin(request: Request, name: str, form: guard.AnyForm) -> Response:
    """Lets a person in, if one more is wanted."""
    return await written(lambda: _begun(request, name, form))


def _begun(request: Request, name: str, form: guard.Form) -> Response:
    with site_of(request).studies.writing() as session:
        project, protocol = _study(session, name)
        text = texts(protocol.language)
        if not guard.same(guard.one(form, "csrf"), guard.csrf_token(request, _address(request))):
            raise HTTPException(403, text("not_begun"))
        who = visitor(protocol, request.query_params)
        token = request.cookies.get(guard.ANNOTATOR, "")
        if _here(request, session, project, who) is None:
            try:
                token = "" if who.preview else admit(session, project, protocol, who)
            except FullError:
                token = ""
        if not token:
            return page(request, "take_end", lang=protocol.language, told=[text("full")], out=WayOut(), way=None)
    response = RedirectResponse("/annotate", 303)
    guard.join(request, response, token)
    return response


@router.post("/annotate/step/{step}")
async def submit(request: Request, step: str, form: guard.CheckedForm) -> Response:
    """Keeps what a person says of a step."""
    return await written(lambda: _submitted(request, step, form))


def _submitted(request: Request, step: str, form: guard.Form) -> Response:
    with signed_in(request, writing=True) as (session, way):
        protocol = way.protocol
        if protocol is None or step not in stages.READ:
            raise HTTPException(404, "There is no such step.")
        if steps.stage_of(session, way, protocol) != step:
            raise steps.ElsewhereError  # sent twice, or from an old page
        try:
            stages.take(session, way, protocol, step, form, seconds_of(form))
        except ExegeteError as error:
            return steps.step_page(request, session, way, protocol, step, told(error, way.language), form=form)
        session.flush()
        steps.finish(session, way)
    return RedirectResponse("/annotate", 303)


@router.get("/annotate/step/picture")
def picture(request: Request) -> Response:
    """The picture of the instructions' example."""
    with signed_in(request) as (_, way):
        if way.protocol is None:
            raise HTTPException(404, "This example has no picture.")
        return Response(steps.picture_of(way.protocol), media_type="image/png")


@router.post("/annotate/withdraw")
async def withdraw(request: Request, form: guard.CheckedForm) -> Response:
    """Deletes all that a person said."""
    return await written(lambda: _withdrawn(request))


def _withdrawn(request: Request) -> Response:
    with signed_in(request, writing=True) as (session, way):
        if way.protocol is None:
            raise HTTPException(404, "Ask whoever invited you to delete your answers.")
        told = [texts(way.language)("withdrawn")]
        stages.withdraw(session, way.annotator)
    response = page(request, "take_end", lang=way.language, told=told, out=WayOut(), way=None)
    response.delete_cookie(guard.ANNOTATOR, path="/")
    return response


def _study(session: Session, name: str) -> tuple[Project, Protocol]:
    project = find(session, name)
    if project.protocol is None:
        raise ExegeteError("this study has no protocol: people are invited to it")
    return project, protocol_of(project.protocol)


def _here(request: Request, session: Session, project: Project, who: Visitor) -> Annotator | None:
    """The person whose browser this is, in this study and, on a platform, of these parameters."""
    person = invited(session, request.cookies.get(guard.ANNOTATOR, ""))
    if person is None or person.project_id != project.id:
        return None
    return person if not who.source or person.source == dict(who.source) else None


def _address(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"
