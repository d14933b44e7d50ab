"""Pages of annotators: sign-in by invitation, overview, and one page per example."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from expound.data.readers.marked import find_marked_units
from expound.errors import ExpoundError
from expound.serve import authentication
from expound.serve.pages import render_page
from expound_people import answers
from expound_people.answers import AnnotatorProgress
from expound_people.kinds import BEFORE, AnnotationTask
from expound_people.projects import find_annotator
from expound_people.protocol import step_pages
from expound_people.protocol.known_answers import has_passed
from expound_people.protocol.stages import MAIN, TRAINING, finish_if_done
from expound_people.services import ANNOTATOR_COOKIE, get_storage, set_annotator_cookie
from expound_people.tables import Annotator, utc_now
from expound_people.texts import MissingError, choose_language, make_translator, translate_error
from expound_people.write_limit import run_write

router = APIRouter()
INVALID_INVITATION = "This invitation is not valid. Ask the person who sent it for a new one."


@router.get("/join/{token}")
def show_invitation(request: Request, token: str) -> Response:
    """Show the page of an invitation, with a button to accept it."""
    # Opening the link must not change anything: mail programs and virus scanners open links, too.
    with get_storage(request).read_session() as session:
        progress = answers.load_progress(session, _require_invited(request, session, token))
        return render_page(
            request,
            "join",
            progress=progress,
            lang=progress.language,
            csrf=authentication.make_csrf_token(request, token),
        )


@router.post("/join/{token}")
async def accept_invitation(request: Request, token: str, form: authentication.UncheckedForm) -> Response:
    """Sign the annotator in with an invitation's token."""
    # There is no cookie yet that the form's token could be derived from, so it is derived from the invitation, which
    # other sites do not know.
    expected = authentication.make_csrf_token(request, token)
    if not authentication.is_equal_secret(authentication.get_field(form, "csrf"), expected):
        raise HTTPException(403, "Open the invitation again and press its button.")
    await run_write(lambda: _mark_joined(request, token))
    response = RedirectResponse("/annotate", 303)
    set_annotator_cookie(request, response, token)
    return response


def _mark_joined(request: Request, token: str) -> None:
    with get_storage(request).write_session() as session:
        person = _require_invited(request, session, token)
        person.joined = person.joined or utc_now()


@router.get("/annotate")
def show_overview(request: Request) -> Response:
    """Show the instructions and the annotator's progress; in a study with a protocol, the current stage."""
    with open_progress(request) as (session, progress):
        if progress.protocol is not None:
            return step_pages.show_current_stage(request, session, progress, progress.protocol)
        return render_page(request, "annotate_home", progress=progress, lang=progress.language)


@router.get("/annotate/left")
def show_signed_out(request: Request) -> Response:
    """Tell an annotator who has signed out how to come back."""
    language = choose_language(request.headers.get("accept-language", ""))
    text = make_translator(language)
    return render_page(request, "message", title=text("signed_out"), message=text("signed_out_hint"), lang=language)


def _get_role(request: Request) -> str:
    """Return whether a request is for a training example (`TRAINING`) or for a studied one (empty)."""
    return TRAINING if request.url.path.startswith("/annotate/training/") else ""


@router.get("/annotate/{place}")
@router.get("/annotate/training/{place}")
def show_example(request: Request, place: int) -> Response:
    """Show the page of an example."""
    role = _get_role(request)
    with open_progress(request, role=role) as (session, progress):
        step_pages.require_stage(session, progress, role or MAIN)
        return render_example(request, session, progress, place)


@router.post("/annotate/{place}")
@router.post("/annotate/training/{place}")
async def submit_answer(request: Request, place: int, form: authentication.CheckedForm) -> Response:
    """Save an answer and redirect to the next incomplete example, or to the feedback on a training example."""
    return await run_write(lambda: _save_submission(request, place, form))


def _save_submission(request: Request, place: int, form: authentication.Form) -> Response:
    role, following = _get_role(request), f"{place}/feedback"
    with open_progress(request, role=role, writing=True) as (session, progress):
        step_pages.require_stage(session, progress, role or MAIN)
        problem = save_form(request, session, progress, place, form)
        if problem is not None:
            return problem
        # Loaded again: `progress` does not know the answer that was just saved.
        updated = answers.load_progress(session, progress.annotator, role)
        finish_if_done(session, updated)
        if not updated.is_complete(place):
            following = str(place)
        elif not role:
            following = str(updated.next_place(place) or "")
    base = "/annotate/training/" if role else "/annotate/"
    return RedirectResponse((base + following).rstrip("/"), 303)


@router.get("/annotate/training/{place}/feedback")
def show_feedback(request: Request, place: int) -> Response:
    """Show whether an answer about a training example was correct, and why."""
    with open_progress(request, role=TRAINING) as (session, progress):
        item = answers.get_item(session, progress, place)
        answer = answers.find_answer(session, progress, item, progress.kind.phases[-1])
        # Feedback reveals the known answer, so it is not shown before an answer is saved.
        if answer is None:
            raise HTTPException(404, "There is no answer yet.")
        return render_page(
            request,
            "take_feedback",
            progress=progress,
            lang=progress.language,
            place=place,
            right=has_passed(progress.kind.name, item, answer.content),
            feedback=item.content["feedback"],
        )


def save_form(
    request: Request, session: Session, progress: AnnotatorProgress, place: int, form: authentication.Form
) -> Response | None:
    """Save the answer of a form; return the page with the form's problem if it is invalid, else None."""
    item = answers.get_item(session, progress, place)
    phase = authentication.get_field(form, "phase")
    if phase not in progress.kind.phases:
        raise ExpoundError("this form does not belong to this study: load the page again")
    task = answers.make_task(progress, item, phase)
    try:
        content = progress.kind.parse_form(form, task, phase) | _read_confidence(progress, form)
    except ExpoundError as error:
        problem = translate_error(error, progress.language)
        return render_example(request, session, progress, place, problem=problem, form=form)
    answers.save_answer(session, progress, item, phase, content, read_seconds(form))
    session.flush()
    return None


@router.get("/annotate/{place}/picture")
@router.get("/annotate/training/{place}/picture")
def get_picture(request: Request, place: int) -> Response:
    """Return the picture (PNG) of an example."""
    with open_progress(request, role=_get_role(request)) as (session, progress):
        image = answers.get_item(session, progress, place).picture
    if image is None:
        raise HTTPException(404, "This example has no picture.")
    return Response(image, media_type="image/png")


@router.post("/annotate/leave/now")
def sign_out(form: authentication.CheckedForm) -> Response:
    """Sign the annotator out; the invitation can be used again."""
    response = RedirectResponse("/annotate/left", 303)
    response.delete_cookie(ANNOTATOR_COOKIE, path="/")
    return response


@contextmanager
def open_progress(
    request: Request, *, role: str = "", writing: bool = False
) -> Iterator[tuple[Session, AnnotatorProgress]]:
    """Open a session with the progress of the annotator who is signed in on this browser."""
    studies = get_storage(request)
    token = request.cookies.get(ANNOTATOR_COOKIE, "")
    # The token is checked on every request, in the same transaction, so that revoking it takes effect at once.
    with studies.write_session() if writing else studies.read_session() as session:
        annotator = find_annotator(session, token)
        if annotator is None:
            raise HTTPException(403, INVALID_INVITATION)
        yield session, answers.load_progress(session, annotator, role)


def _require_invited(request: Request, session: Session, token: str) -> Annotator:
    """Return the annotator with the token of an invitation. Wrong ones are counted, see `require_attempt`."""
    authentication.require_attempt(request)
    person = find_annotator(session, token)
    authentication.record_attempt(request, is_right=person is not None)
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
    """Render the page of an example, filled in with the form that was sent or the stored answer."""
    item = answers.get_item(session, progress, place)
    phase = progress.next_phase(place)
    task = answers.make_task(progress, item, phase)
    stored = answers.find_answer(session, progress, item, phase)
    content = {} if stored is None else stored.content
    first = answers.find_answer(session, progress, item, BEFORE) if phase != BEFORE else None
    return render_page(
        request,
        f"annotate_{progress.project.kind}",
        status=422 if problem else 200,
        progress=progress,
        lang=progress.language,
        place=place,
        base=f"/annotate/{progress.role}/{place}" if progress.role else f"/annotate/{place}",
        signed=progress.main.show == "signed",
        sure=content.get("confidence"),
        task=task,
        phase=phase,
        label=item.content["label"],
        chosen=_get_initial_values(progress, content, task, form),
        first=None if first is None else first.content,
        problem=problem,
    )


def _get_initial_values(
    progress: AnnotatorProgress, content: dict[str, Any], task: AnnotationTask, form: authentication.Form | None
) -> Any:
    """Return the form's initial values: ranks by letter, a label, or the numbers of marked units."""
    if progress.kind.is_simulation:
        return content.get("guess")
    if progress.project.kind == "rank" and form is not None:
        return {shown.letter: authentication.get_field(form, f"rank-{shown.letter}") for shown in task.explanations}
    if progress.project.kind == "rank":
        ranks = content.get("ranks", {})
        return {shown.letter: str(ranks.get(shown.method, "")) for shown in task.explanations}
    if form is not None:
        return {number for number in range(len(task.units)) if str(number) in form.get("unit", ())}
    return set(np.flatnonzero(find_marked_units(task.units, content.get("marks", []))).tolist())


def _read_confidence(progress: AnnotatorProgress, form: authentication.Form) -> dict[str, int]:
    """Return the confidence from 1 to 5 if the protocol asks for it, else an empty dict."""
    if progress.protocol is None or not progress.protocol.main.confidence:
        return {}
    value = authentication.get_field(form, "confidence")
    if value not in set("12345"):
        raise MissingError("needs_sure")
    return {"confidence": int(value)}


def read_seconds(form: authentication.Form) -> float | None:
    """Return the seconds that a form says it took; None if it has no finite number."""
    # The time is optional: browsers without JavaScript do not send it, and an answer must not be lost for it.
    try:
        seconds = float(authentication.get_field(form, "seconds", "nan"))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None
