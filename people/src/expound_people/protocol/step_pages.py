"""Pages of a protocol's stages outside the examples, from consent to the end."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from expound.serve.pages import render_page
from expound_people import answers
from expound_people.answers import AnnotatorProgress
from expound_people.blinding import BlindExplanation, hide_method
from expound_people.protocol import stages
from expound_people.protocol.admission import COMPLETE, FAILED, LATE, SCREENED_OUT, is_late
from expound_people.protocol.file import ExitPart, Protocol
from expound_people.protocol.known_answers import PLANTED, make_planted_example
from expound_people.texts import make_translator


class WrongStageError(Exception):
    """An annotator requested a page of another stage than the one that they have reached."""


def require_stage(session: Session, progress: AnnotatorProgress, stage: str) -> None:
    """Raise WrongStageError unless the annotator is at this stage; studies without a protocol have no stages."""
    protocol = progress.protocol
    if protocol is not None and stages.find_stage(session, progress.annotator, protocol) != stage:
        raise WrongStageError


def show_current_stage(request: Request, session: Session, progress: AnnotatorProgress, protocol: Protocol) -> Response:
    """Render the page of the stage that an annotator has reached, or redirect to an example."""
    stage = stages.find_stage(session, progress.annotator, protocol)
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
    form: stages.Form | None = None,
) -> Response:
    """Render the page of a step; `problem` and `form` are those of a form that was incomplete."""
    example = None
    # The comprehension check repeats the instructions: it is no test of memory.
    if step in (stages.INSTRUCTIONS, stages.COMPREHENSION) and protocol.instructions.example is not None:
        explanation = make_planted_example(protocol.instructions.example)[1]
        example = BlindExplanation("A", PLANTED, hide_method(explanation, "A"))
    return render_page(
        request,
        "take_step",
        status=422 if problem else 200,
        progress=progress,
        lang=progress.language,
        protocol=protocol.model_dump(),
        step=step,
        problem=problem,
        # Only the comprehension check can be attempted again.
        again=step in {attempt.name for attempt in stages.load_steps(session, progress.annotator)},
        sent=form or {},
        example=example,
    )


def _render_end(request: Request, progress: AnnotatorProgress, protocol: Protocol) -> Response:
    recruiting = protocol.recruiting
    exits = {COMPLETE: recruiting.complete, SCREENED_OUT: recruiting.screened_out, FAILED: recruiting.failed}
    status = LATE if is_late(progress.annotator, protocol) else progress.annotator.status or COMPLETE
    paragraphs = protocol.thanks
    if status != COMPLETE:
        # Keys of the catalog are the statuses with underscores.
        paragraphs = (make_translator(progress.language)(status.replace(" ", "_")),)
    # Late and withdrawn annotators get no completion code: it would pay for a study that was not finished.
    out = exits.get(status, ExitPart())
    return render_page(request, "take_end", progress=progress, lang=progress.language, paragraphs=paragraphs, out=out)
