"""The pages of a protocol around its examples: begin, consent to questionnaire, the end."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from exegete.web.human_study import answers
from exegete.web.human_study.answers import Walk
from exegete.web.human_study.blind import Unnamed, unnamed
from exegete.web.human_study.protocol import stages
from exegete.web.human_study.protocol.admission import COMPLETE, FAILED, LATE, SCREENED_OUT, late
from exegete.web.human_study.protocol.file import KnownPart, Protocol, WayOut
from exegete.web.human_study.protocol.known import PLANTED, planted
from exegete.web.human_study.texts import texts
from exegete.web.pages import page


class ElsewhereError(Exception):
    """A person is at another step than the one that was asked for."""


def require(session: Session, way: Walk, wanted: str) -> None:
    """Raises ElsewhereError unless a person of a protocol is at this stage, or may go back in it."""
    protocol = way.protocol
    if protocol is not None and stage_of(session, way, protocol) != wanted:
        raise ElsewhereError


def stage_of(session: Session, way: Walk, protocol: Protocol) -> str:
    """The stage at which a person is."""
    main = answers.walk(session, way.annotator)
    return stages.stage(session, main, answers.walk(session, way.annotator, stages.TRAINING), protocol)


def finish(session: Session, way: Walk) -> None:
    """Marks a person who has come to the end."""
    if way.protocol is not None:
        training = answers.walk(session, way.annotator, stages.TRAINING)
        stages.finish(session, way, training, way.protocol)


def current(request: Request, session: Session, way: Walk, protocol: Protocol) -> Response:
    """The page of the step at which a person is, or the way to it."""
    stage = stage_of(session, way, protocol)
    if stage == stages.END:
        return _ended(request, way, protocol)
    if stage == stages.TRAINING:
        training = answers.walk(session, way.annotator, stages.TRAINING)
        return RedirectResponse(f"/annotate/training/{training.next()}", 303)
    if stage == stages.MAIN:
        return RedirectResponse(f"/annotate/{way.next()}", 303)
    return step_page(request, session, way, protocol, stage)


def step_page(
    request: Request, session: Session, way: Walk, protocol: Protocol, step: str, problem: str = "", **sent: Any
) -> Response:
    """The page of one step. `sent`: what a form brought that has to be completed."""
    again = step == stages.COMPREHENSION and any(each.name == step for each in stages.steps_of(session, way.annotator))
    part = protocol.instructions.example if step in (stages.INSTRUCTIONS, stages.COMPREHENSION) else None
    return page(
        request,
        "take_step",
        status=422 if problem else 200,
        way=way,
        lang=way.language,
        protocol=protocol.model_dump(),
        step=step,
        problem=problem,
        again=again,
        sent=sent.get("form", {}),
        example=None if part is None else Unnamed("A", PLANTED, unnamed(planted(part)[1], "A")),
    )


def picture_of(protocol: Protocol) -> bytes:
    """The picture of the instructions' example."""
    part: KnownPart | None = protocol.instructions.example
    found = None if part is None else planted(part)[0].picture
    if found is None:
        raise HTTPException(404, "This example has no picture.")
    return found


def _ended(request: Request, way: Walk, protocol: Protocol) -> Response:
    recruiting = protocol.recruiting
    ways = {COMPLETE: recruiting.complete, SCREENED_OUT: recruiting.screened_out, FAILED: recruiting.failed}
    status = LATE if late(way.annotator, protocol) else way.annotator.status or COMPLETE
    text = texts(way.language)
    told = protocol.thanks if status == COMPLETE else [text(status.replace(" ", "_"))]
    return page(request, "take_end", way=way, lang=way.language, told=told, out=ways.get(status, WayOut()))
