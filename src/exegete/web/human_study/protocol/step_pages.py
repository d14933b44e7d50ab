"""The pages of a protocol around its examples: begin, consent to questionnaire, the end."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from exegete.web.human_study import answers
from exegete.web.human_study.answers import AnnotatorProgress
from exegete.web.human_study.blinding import BlindExplanation, hide_method
from exegete.web.human_study.protocol import stages
from exegete.web.human_study.protocol.admission import COMPLETE, FAILED, LATE, SCREENED_OUT, is_late
from exegete.web.human_study.protocol.file import ExitPart, KnownPart, Protocol
from exegete.web.human_study.protocol.known_answers import PLANTED, make_planted_example
from exegete.web.human_study.texts import make_translator
from exegete.web.pages import render_page


class WrongStageError(Exception):
    """A person is at another step than the one that was asked for."""


def require_stage(session: Session, progress: AnnotatorProgress, wanted: str) -> None:
    """Raises ElsewhereError unless a person of a protocol is at this stage, or may go back in it."""
    protocol = progress.protocol
    if protocol is not None and get_stage(session, progress, protocol) != wanted:
        raise WrongStageError


def get_stage(session: Session, progress: AnnotatorProgress, protocol: Protocol) -> str:
    """The stage at which a person is."""
    main = answers.load_progress(session, progress.annotator)
    return stages.find_stage(
        session, main, answers.load_progress(session, progress.annotator, stages.TRAINING), protocol
    )


def finish_if_done(session: Session, progress: AnnotatorProgress) -> None:
    """Marks a person who has come to the end."""
    if progress.protocol is not None:
        training = answers.load_progress(session, progress.annotator, stages.TRAINING)
        stages.mark_finished(session, progress, training, progress.protocol)


def show_current_stage(request: Request, session: Session, progress: AnnotatorProgress, protocol: Protocol) -> Response:
    """The page of the step at which a person is, or the progress to it."""
    stage = get_stage(session, progress, protocol)
    if stage == stages.END:
        return _render_end(request, progress, protocol)
    if stage == stages.TRAINING:
        training = answers.load_progress(session, progress.annotator, stages.TRAINING)
        return RedirectResponse(f"/annotate/training/{training.next_place()}", 303)
    if stage == stages.MAIN:
        return RedirectResponse(f"/annotate/{progress.next_place()}", 303)
    return render_step(request, session, progress, protocol, stage)


def render_step(
    request: Request,
    session: Session,
    progress: AnnotatorProgress,
    protocol: Protocol,
    step: str,
    problem: str = "",
    **sent: Any,
) -> Response:
    """The page of one step. `sent`: what a form brought that has to be completed."""
    again = step == stages.COMPREHENSION and any(
        each.name == step for each in stages.load_steps(session, progress.annotator)
    )
    part = protocol.instructions.example if step in (stages.INSTRUCTIONS, stages.COMPREHENSION) else None
    return render_page(
        request,
        "take_step",
        status=422 if problem else 200,
        progress=progress,
        lang=progress.language,
        protocol=protocol.model_dump(),
        step=step,
        problem=problem,
        again=again,
        sent=sent.get("form", {}),
        example=None
        if part is None
        else BlindExplanation("A", PLANTED, hide_method(make_planted_example(part)[1], "A")),
    )


def get_example_picture(protocol: Protocol) -> bytes:
    """The picture of the instructions' example."""
    part: KnownPart | None = protocol.instructions.example
    found = None if part is None else make_planted_example(part)[0].picture
    if found is None:
        raise HTTPException(404, "This example has no picture.")
    return found


def _render_end(request: Request, progress: AnnotatorProgress, protocol: Protocol) -> Response:
    recruiting = protocol.recruiting
    ways = {COMPLETE: recruiting.complete, SCREENED_OUT: recruiting.screened_out, FAILED: recruiting.failed}
    status = LATE if is_late(progress.annotator, protocol) else progress.annotator.status or COMPLETE
    text = make_translator(progress.language)
    told = protocol.thanks if status == COMPLETE else [text(status.replace(" ", "_"))]
    return render_page(
        request, "take_end", progress=progress, lang=progress.language, told=told, out=ways.get(status, ExitPart())
    )
