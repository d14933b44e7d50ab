"""The pages of annotators: sign in by invitation, one example after the other, back and forth, done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from exegete.data.marked import find_marked_units
from exegete.errors import ExegeteError
from exegete.web import guard
from exegete.web.busy import written
from exegete.web.human_study import answers
from exegete.web.human_study.answers import Walk
from exegete.web.human_study.kinds import BEFORE, Asked
from exegete.web.human_study.projects import invited
from exegete.web.human_study.protocol import steps
from exegete.web.human_study.protocol.known import passed
from exegete.web.human_study.protocol.stages import MAIN, TRAINING
from exegete.web.human_study.tables import Annotator, now
from exegete.web.human_study.texts import MissingError, told
from exegete.web.pages import page
from exegete.web.site import site_of

router = APIRouter()
GONE = "This invitation is not valid, or not any more. Ask whoever sent it for a new one."


@router.get("/join/{token}")
def invitation(request: Request, token: str) -> Response:
    """The study's invitation page with a button; opening the link changes nothing, as mail programs open links too."""
    with site_of(request).studies.reading() as session:
        way = answers.walk(session, _person(session, token))
        return page(request, "join", way=way, lang=way.language, csrf=guard.csrf_token(request, token))


@router.post("/join/{token}")
async def join(request: Request, token: str, form: guard.AnyForm) -> Response:
    """Signs the annotator in by the invitation's token."""
    if not guard.same(guard.one(form, "csrf"), guard.csrf_token(request, token)):
        raise HTTPException(403, "Open the invitation again and press its button.")
    await written(lambda: _joined(request, token))
    response = RedirectResponse("/annotate", 303)
    guard.join(request, response, token)
    return response


def _joined(request: Request, token: str) -> None:
    with site_of(request).studies.writing() as session:
        person = _person(session, token)
        person.joined = person.joined or now()


@router.get("/annotate")
def overview(request: Request) -> Response:
    """The instructions, and how far one has come; by a protocol, what comes next."""
    with signed_in(request) as (session, way):
        if way.protocol is not None:
            return steps.current(request, session, way, way.protocol)
        return page(request, "annotate_home", way=way, lang=way.language)


@router.get("/annotate/{place}")
def example(request: Request, place: int) -> Response:
    """The page of one example to annotate."""
    with signed_in(request) as (session, way):
        steps.require(session, way, MAIN)
        return shown(request, session, way, place)


@router.post("/annotate/{place}")
async def submit(request: Request, place: int, form: guard.CheckedForm) -> Response:
    """Keeps an answer and goes on."""
    return await written(lambda: _submitted(request, place, form))


def _submitted(request: Request, place: int, form: guard.Form) -> Response:
    with signed_in(request, writing=True) as (session, way):
        steps.require(session, way, MAIN)
        problem = kept(request, session, way, place, form)
        if problem is not None:
            return problem
        further = answers.walk(session, way.annotator)
        steps.finish(session, further)
        after = further.next(place) if further.complete(place) else place
    return RedirectResponse("/annotate" if after is None else f"/annotate/{after}", 303)


@router.get("/annotate/training/{place}")
def practice(request: Request, place: int) -> Response:
    """The page of an example of the training."""
    with signed_in(request, role=TRAINING) as (session, way):
        steps.require(session, way, TRAINING)
        return shown(request, session, way, place)


@router.post("/annotate/training/{place}")
async def practise(request: Request, place: int, form: guard.CheckedForm) -> Response:
    """Keeps an answer of the training, and says whether it is the known one."""
    return await written(lambda: _practised(request, place, form))


def _practised(request: Request, place: int, form: guard.Form) -> Response:
    with signed_in(request, role=TRAINING, writing=True) as (session, way):
        steps.require(session, way, TRAINING)
        problem = kept(request, session, way, place, form)
        further = answers.walk(session, way.annotator, TRAINING)
        if problem is None and further.complete(place):
            steps.finish(session, answers.walk(session, way.annotator))
            return RedirectResponse(f"/annotate/training/{place}/feedback", 303)
    return problem or RedirectResponse(f"/annotate/training/{place}", 303)


@router.get("/annotate/training/{place}/feedback")
def feedback(request: Request, place: int) -> Response:
    """Whether an answer of the training was the known one, and why."""
    with signed_in(request, role=TRAINING) as (session, way):
        item = answers.item_at(session, way, place)
        said = answers.answer(session, way, item, way.kind.phases[-1])
        if said is None:
            raise HTTPException(404, "There is no answer yet.")
        right = passed(way.kind.name, item, said.content)
        told = item.content["feedback"]
        return page(request, "take_feedback", way=way, lang=way.language, place=place, right=right, feedback=told)


def kept(request: Request, session: Session, way: Walk, place: int, form: guard.Form) -> Response | None:
    """Keeps the answer of a form; the page that says what is wrong with it, if anything is."""
    item = answers.item_at(session, way, place)
    phase = guard.one(form, "phase")
    if phase not in way.kind.phases:
        raise ExegeteError("this form is not one of this study's")
    try:
        content = way.kind.read(form, answers.asked(way, item, phase), phase) | _confidence(way, form)
    except ExegeteError as error:
        return shown(request, session, way, place, problem=told(error, way.language), form=form)
    answers.keep(session, way, item, phase, content, seconds_of(form))
    session.flush()
    return None


@router.get("/annotate/{place}/picture")
def picture(request: Request, place: int, role: str = "") -> Response:
    """The image of an example in the study."""
    with signed_in(request, role=role) as (session, way):
        found = answers.item_at(session, way, place).picture
    if found is None:
        raise HTTPException(404, "This example has no picture.")
    return Response(found, media_type="image/png")


@router.get("/annotate/training/{place}/picture")
def practice_picture(request: Request, place: int) -> Response:
    """The image of an example of the training."""
    return picture(request, place, TRAINING)


@router.post("/annotate/leave/now")
def leave(form: guard.CheckedForm) -> Response:
    """Signs out; the invitation lets one in again."""
    response = RedirectResponse("/annotate", 303)
    response.delete_cookie(guard.ANNOTATOR, path="/")
    return response


@contextmanager
def signed_in(request: Request, *, role: str = "", writing: bool = False) -> Iterator[tuple[Session, Walk]]:
    """A session, and the way of the annotator whose browser this is."""
    studies = site_of(request).studies
    with studies.writing() if writing else studies.reading() as session:
        yield session, answers.walk(session, _person(session, request.cookies.get(guard.ANNOTATOR, "")), role)


def _person(session: Session, token: str) -> Annotator:
    person = invited(session, token)
    if person is None:
        raise HTTPException(403, GONE)
    return person


def shown(
    request: Request, session: Session, way: Walk, place: int, problem: str = "", form: guard.Form | None = None
) -> Response:
    """The page of an example, with what was just sent or answered earlier filled in."""
    item = answers.item_at(session, way, place)
    phase = way.phase(place)
    asked = answers.asked(way, item, phase)
    said = answers.answer(session, way, item, phase)
    first = answers.answer(session, way, item, BEFORE) if phase != BEFORE else None
    content = None if said is None else said.content
    return page(
        request,
        f"annotate_{way.project.kind}",
        status=422 if problem else 200,
        way=way,
        lang=way.language,
        place=place,
        base=f"/annotate/{way.role}/{place}" if way.role else f"/annotate/{place}",
        signed=way.main.show == "signed",
        sure=(content or {}).get("confidence"),
        asked=asked,
        phase=phase,
        label=item.content["label"],
        chosen=_chosen(way, content, asked, form),
        first=None if first is None else first.content,
        problem=problem,
    )


def _chosen(way: Walk, content: dict[str, Any] | None, asked: Asked, form: guard.Form | None) -> Any:
    """The form's initial values: those just sent, or those of an earlier answer."""
    if way.project.kind == "rank":
        if form is not None:
            return {each.letter: guard.one(form, f"rank-{each.letter}") for each in asked.shown}
        return {each.letter: str((content or {}).get("ranks", {}).get(each.method, "")) for each in asked.shown}
    if way.kind.guesses:
        return (content or {}).get("guess")
    if form is not None:
        return {number for number in range(len(asked.units)) if str(number) in form.get("unit", ())}
    return set(np.flatnonzero(find_marked_units(asked.units, (content or {}).get("marks", []))).tolist())


def _confidence(way: Walk, form: guard.Form) -> dict[str, int]:
    """How sure a person is, from 1 to 5, where the protocol asks for it."""
    if way.protocol is None or not way.protocol.main.confidence:
        return {}
    given = guard.one(form, "confidence")
    if given not in set("12345"):
        raise MissingError("needs_sure")
    return {"confidence": int(given)}


def seconds_of(form: guard.Form) -> float | None:
    """The seconds that a form says it took; None where it says nothing usable."""
    try:
        seconds = float(guard.one(form, "seconds", "nan"))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None
