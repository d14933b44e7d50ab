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
from exegete.web import authentication
from exegete.web.human_study import answers
from exegete.web.human_study.answers import AnnotatorProgress
from exegete.web.human_study.kinds import BEFORE, AnnotationTask
from exegete.web.human_study.projects import find_annotator
from exegete.web.human_study.protocol import step_pages
from exegete.web.human_study.protocol.known_answers import has_passed
from exegete.web.human_study.protocol.stages import MAIN, TRAINING
from exegete.web.human_study.tables import Annotator, utc_now
from exegete.web.human_study.texts import MissingError, translate_error
from exegete.web.pages import render_page
from exegete.web.site import get_site
from exegete.web.write_limit import run_write

router = APIRouter()
INVALID_INVITATION = "This invitation is not valid, or not any more. Ask whoever sent it for a new one."


@router.get("/join/{token}")
def show_invitation(request: Request, token: str) -> Response:
    """The study's invitation page with a button; opening the link changes nothing, as mail programs open links too."""
    with get_site(request).studies.read_session() as session:
        progress = answers.load_progress(session, _require_annotator(session, token))
        return render_page(
            request,
            "join",
            progress=progress,
            lang=progress.language,
            csrf=authentication.make_csrf_token(request, token),
        )


@router.post("/join/{token}")
async def accept_invitation(request: Request, token: str, form: authentication.UncheckedForm) -> Response:
    """Signs the annotator in by the invitation's token."""
    if not authentication.is_equal_secret(
        authentication.get_field(form, "csrf"), authentication.make_csrf_token(request, token)
    ):
        raise HTTPException(403, "Open the invitation again and press its button.")
    await run_write(lambda: _mark_joined(request, token))
    response = RedirectResponse("/annotate", 303)
    authentication.set_annotator_cookie(request, response, token)
    return response


def _mark_joined(request: Request, token: str) -> None:
    with get_site(request).studies.write_session() as session:
        person = _require_annotator(session, token)
        person.joined = person.joined or utc_now()


@router.get("/annotate")
def show_overview(request: Request) -> Response:
    """The instructions, and how far one has come; by a protocol, what comes next."""
    with open_progress(request) as (session, progress):
        if progress.protocol is not None:
            return step_pages.show_current_stage(request, session, progress, progress.protocol)
        return render_page(request, "annotate_home", progress=progress, lang=progress.language)


@router.get("/annotate/{place}")
def show_example(request: Request, place: int) -> Response:
    """The page of one example to annotate."""
    with open_progress(request) as (session, progress):
        step_pages.require_stage(session, progress, MAIN)
        return render_example(request, session, progress, place)


@router.post("/annotate/{place}")
async def submit_answer(request: Request, place: int, form: authentication.CheckedForm) -> Response:
    """Keeps an answer and goes on."""
    return await run_write(lambda: _save_submission(request, place, form))


def _save_submission(request: Request, place: int, form: authentication.Form) -> Response:
    with open_progress(request, writing=True) as (session, progress):
        step_pages.require_stage(session, progress, MAIN)
        problem = save_form(request, session, progress, place, form)
        if problem is not None:
            return problem
        further = answers.load_progress(session, progress.annotator)
        step_pages.finish_if_done(session, further)
        after = further.next_place(place) if further.is_complete(place) else place
    return RedirectResponse("/annotate" if after is None else f"/annotate/{after}", 303)


@router.get("/annotate/training/{place}")
def show_training_example(request: Request, place: int) -> Response:
    """The page of an example of the training."""
    with open_progress(request, role=TRAINING) as (session, progress):
        step_pages.require_stage(session, progress, TRAINING)
        return render_example(request, session, progress, place)


@router.post("/annotate/training/{place}")
async def submit_training_answer(request: Request, place: int, form: authentication.CheckedForm) -> Response:
    """Keeps an answer of the training, and says whether it is the known one."""
    return await run_write(lambda: _save_training_answer(request, place, form))


def _save_training_answer(request: Request, place: int, form: authentication.Form) -> Response:
    with open_progress(request, role=TRAINING, writing=True) as (session, progress):
        step_pages.require_stage(session, progress, TRAINING)
        problem = save_form(request, session, progress, place, form)
        further = answers.load_progress(session, progress.annotator, TRAINING)
        if problem is None and further.is_complete(place):
            step_pages.finish_if_done(session, answers.load_progress(session, progress.annotator))
            return RedirectResponse(f"/annotate/training/{place}/feedback", 303)
    return problem or RedirectResponse(f"/annotate/training/{place}", 303)


@router.get("/annotate/training/{place}/feedback")
def show_feedback(request: Request, place: int) -> Response:
    """Whether an answer of the training was the known one, and why."""
    with open_progress(request, role=TRAINING) as (session, progress):
        item = answers.get_item(session, progress, place)
        said = answers.find_answer(session, progress, item, progress.kind.phases[-1])
        if said is None:
            raise HTTPException(404, "There is no answer yet.")
        right = has_passed(progress.kind.name, item, said.content)
        translate_error = item.content["feedback"]
        return render_page(
            request,
            "take_feedback",
            progress=progress,
            lang=progress.language,
            place=place,
            right=right,
            feedback=translate_error,
        )


def save_form(
    request: Request, session: Session, progress: AnnotatorProgress, place: int, form: authentication.Form
) -> Response | None:
    """Keeps the answer of a form; the page that says what is wrong with it, if anything is."""
    item = answers.get_item(session, progress, place)
    phase = authentication.get_field(form, "phase")
    if phase not in progress.kind.phases:
        raise ExegeteError("this form is not one of this study's")
    try:
        content = progress.kind.parse_form(form, answers.make_task(progress, item, phase), phase) | _read_confidence(
            progress, form
        )
    except ExegeteError as error:
        return render_example(
            request, session, progress, place, problem=translate_error(error, progress.language), form=form
        )
    answers.save_answer(session, progress, item, phase, content, read_seconds(form))
    session.flush()
    return None


@router.get("/annotate/{place}/picture")
def get_picture(request: Request, place: int, role: str = "") -> Response:
    """The image of an example in the study."""
    with open_progress(request, role=role) as (session, progress):
        found = answers.get_item(session, progress, place).picture
    if found is None:
        raise HTTPException(404, "This example has no picture.")
    return Response(found, media_type="image/png")


@router.get("/annotate/training/{place}/picture")
def get_training_picture(request: Request, place: int) -> Response:
    """The image of an example of the training."""
    return get_picture(request, place, TRAINING)


@router.post("/annotate/leave/now")
def sign_out(form: authentication.CheckedForm) -> Response:
    """Signs out; the invitation lets one in again."""
    response = RedirectResponse("/annotate", 303)
    response.delete_cookie(authentication.ANNOTATOR_COOKIE, path="/")
    return response


@contextmanager
def open_progress(
    request: Request, *, role: str = "", writing: bool = False
) -> Iterator[tuple[Session, AnnotatorProgress]]:
    """A session, and the progress of the annotator whose browser this is."""
    studies = get_site(request).studies
    with studies.write_session() if writing else studies.read_session() as session:
        yield (
            session,
            answers.load_progress(
                session, _require_annotator(session, request.cookies.get(authentication.ANNOTATOR_COOKIE, "")), role
            ),
        )


def _require_annotator(session: Session, token: str) -> Annotator:
    person = find_annotator(session, token)
    if person is None:
        raise HTTPException(403, INVALID_INVITATION)
    return person


def render_example(
    request: Request,
    session: Session,
    progress: AnnotatorProgress,
    place: int,
    problem: str = "",
    form: authentication.Form | None = None,
) -> Response:
    """The page of an example, with what was just sent or answered earlier filled in."""
    item = answers.get_item(session, progress, place)
    phase = progress.next_phase(place)
    task = answers.make_task(progress, item, phase)
    said = answers.find_answer(session, progress, item, phase)
    first = answers.find_answer(session, progress, item, BEFORE) if phase != BEFORE else None
    content = None if said is None else said.content
    return render_page(
        request,
        f"annotate_{progress.project.kind}",
        status=422 if problem else 200,
        progress=progress,
        lang=progress.language,
        place=place,
        base=f"/annotate/{progress.role}/{place}" if progress.role else f"/annotate/{place}",
        signed=progress.main.show == "signed",
        sure=(content or {}).get("confidence"),
        task=task,
        phase=phase,
        label=item.content["label"],
        chosen=_get_initial_values(progress, content, task, form),
        first=None if first is None else first.content,
        problem=problem,
    )


def _get_initial_values(
    progress: AnnotatorProgress, content: dict[str, Any] | None, task: AnnotationTask, form: authentication.Form | None
) -> Any:
    """The form's initial values: those just sent, or those of an earlier answer."""
    if progress.project.kind == "rank":
        if form is not None:
            return {each.letter: authentication.get_field(form, f"rank-{each.letter}") for each in task.explanations}
        return {each.letter: str((content or {}).get("ranks", {}).get(each.method, "")) for each in task.explanations}
    if progress.kind.is_simulation:
        return (content or {}).get("guess")
    if form is not None:
        return {number for number in range(len(task.units)) if str(number) in form.get("unit", ())}
    return set(np.flatnonzero(find_marked_units(task.units, (content or {}).get("marks", []))).tolist())


def _read_confidence(progress: AnnotatorProgress, form: authentication.Form) -> dict[str, int]:
    """How sure a person is, from 1 to 5, where the protocol asks for it."""
    if progress.protocol is None or not progress.protocol.main.confidence:
        return {}
    given = authentication.get_field(form, "confidence")
    if given not in set("12345"):
        raise MissingError("needs_sure")
    return {"confidence": int(given)}


def read_seconds(form: authentication.Form) -> float | None:
    """The seconds that a form says it took; None where it says nothing usable."""
    try:
        seconds = float(authentication.get_field(form, "seconds", "nan"))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None
