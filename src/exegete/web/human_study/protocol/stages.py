"""The stages of a study from consent to thanks: a person's next one, and answers that are kept on the progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from exegete.web.human_study.answers import AnnotatorProgress
from exegete.web.human_study.protocol.admission import (
    COMPLETE,
    FAILED,
    LATE,
    SCREENED_OUT,
    WITHDRAWN,
    has_quota_left,
    is_late,
)
from exegete.web.human_study.protocol.file import Protocol, QuestionPart
from exegete.web.human_study.tables import Annotator, AnnotatorAnswer, AnnotatorStep, utc_now
from exegete.web.human_study.texts import MissingError

CONSENT, SCREENING, INSTRUCTIONS, TRAINING = "consent", "screening", "instructions", "training"
COMPREHENSION, MAIN, QUESTIONNAIRE, END = "comprehension", "main", "questionnaire", "end"
MAX_ANSWER_LENGTH = 5000
"""Characters of an answer in words."""
Form = Mapping[str, Sequence[str]]


def find_stage(session: Session, progress: AnnotatorProgress, training: AnnotatorProgress, protocol: Protocol) -> str:
    """The next stage of a person."""
    person = progress.annotator
    if person.status or is_late(person, protocol):
        return END
    done = {step.name: step for step in load_steps(session, person)}
    tried = done.get(COMPREHENSION)
    needed = (
        (CONSENT, CONSENT not in done),
        (SCREENING, bool(protocol.screening) and SCREENING not in done),
        (INSTRUCTIONS, INSTRUCTIONS not in done),
        (TRAINING, training.next_place() is not None),
        (COMPREHENSION, protocol.comprehension is not None and not (tried and tried.content["right"])),
        (MAIN, progress.next_place() is not None),
        (QUESTIONNAIRE, bool(protocol.questionnaire) and QUESTIONNAIRE not in done),
    )
    return next((name for name, missing in needed if missing), END)


def load_steps(session: Session, person: Annotator) -> list[AnnotatorStep]:
    """A person's answers outside the examples, earlier attempts first."""
    found = (
        select(AnnotatorStep)
        .where(AnnotatorStep.annotator_id == person.id)
        .order_by(AnnotatorStep.name, AnnotatorStep.attempt)
    )
    return list(session.scalars(found))


def save_step(
    session: Session, progress: AnnotatorProgress, protocol: Protocol, name: str, form: Form, seconds: float | None
) -> None:
    """Keeps what a form says of a step, once, and ends a person's progress where it says so.

    Raises MissingError, telling what is missing in the form.
    """
    person = progress.annotator
    content = STEP_READERS[name](protocol, form)
    attempt = 1 + sum(step.name == name for step in load_steps(session, person)) if name == COMPREHENSION else 1
    try:
        with session.begin_nested():
            session.add(
                AnnotatorStep(annotator_id=person.id, name=name, attempt=attempt, content=content, seconds=seconds)
            )
    except IntegrityError:
        return  # sent twice
    if name == SCREENING:
        fits = all(not each.accept or content[each.name] in each.accept for each in protocol.screening)
        if not fits or not has_quota_left(session, progress.project, protocol, content, person.id):
            set_status(person, SCREENED_OUT)
    tries = protocol.comprehension.attempts if protocol.comprehension else 1
    if name == COMPREHENSION and not content["right"] and attempt >= tries:
        set_status(person, FAILED)


def mark_finished(
    session: Session, progress: AnnotatorProgress, training: AnnotatorProgress, protocol: Protocol
) -> None:
    """Marks a person as complete, or as late, who has come to the end and is not marked yet."""
    if progress.annotator.status == "" and find_stage(session, progress, training, protocol) == END:
        set_status(progress.annotator, LATE if is_late(progress.annotator, protocol) else COMPLETE)


def set_status(person: Annotator, status: str) -> None:
    """A person's progress ends."""
    person.status, person.ended = status, utc_now()


def withdraw(session: Session, person: Annotator) -> None:
    """Deletes all that a person said and who it was; that somebody withdrew is kept."""
    for table in (AnnotatorAnswer, AnnotatorStep):
        session.execute(delete(table).where(table.annotator_id == person.id))
    person.person, person.source, person.slot, person.items, person.token_digest = None, None, None, None, None
    count = select(func.count()).where(Annotator.project_id == person.project_id, Annotator.status == WITHDRAWN)
    person.name = f"withdrawn {1 + (session.scalar(count) or 0)}"
    set_status(person, WITHDRAWN)


def _read_consent(protocol: Protocol, form: Form) -> dict[str, Any]:
    if len(set(form.get("agree", ()))) < len(protocol.consent.agree):
        raise MissingError("needs_ticks")
    return {"agreed": protocol.consent.agree}


def _read_comprehension(protocol: Protocol, form: Form) -> dict[str, Any]:
    questions = protocol.comprehension.questions if protocol.comprehension else []
    given = [_read_choice(each.choices, form.get(f"q{number}", ())) for number, each in enumerate(questions)]
    return {"given": given, "right": given == [each.answer for each in questions]}


def _read_answers(questions: Sequence[QuestionPart], form: Form) -> dict[str, Any]:
    """Reads a form's answers to questions. Raises MissingError for the first one that needs an answer."""
    found: dict[str, Any] = {}
    for question in questions:
        try:
            found[question.name] = _read_answer(question, form)
        except MissingError as error:
            if not question.optional:
                raise MissingError("of_question", question=question.question, problem=error) from None
            found[question.name] = None
    return found


def _read_answer(question: QuestionPart, form: Form) -> Any:
    given = form.get(question.name, ())
    if question.kind == "choice":
        return _read_choice(question.choices, given)
    if question.kind == "scale":
        points = [str(number) for number in range(1, question.points + 1)]
        every = [form.get(f"{question.name}-{number}", ()) for number in range(1, len(question.statements) + 1)]
        return [int(_require_one_of(points, each)) for each in every]
    text = "".join(given[:1]).strip()[:MAX_ANSWER_LENGTH]
    if not text:
        raise MissingError("needs_answer")
    if question.kind == "number":
        if not text.isdecimal() or len(text) > 9:
            raise MissingError("needs_number")
        return int(text)
    return text


def _read_choice(choices: Sequence[str], given: Sequence[str]) -> str:
    return choices[int(_require_one_of([str(number) for number in range(len(choices))], given))]


def _require_one_of(valid: Sequence[str], given: Sequence[str]) -> str:
    if len(given) != 1 or given[0] not in valid:
        raise MissingError("needs_answer")
    return given[0]


STEP_READERS: dict[str, Callable[[Protocol, Form], dict[str, Any]]] = {
    CONSENT: _read_consent,
    SCREENING: lambda protocol, form: _read_answers(protocol.screening, form),
    INSTRUCTIONS: lambda protocol, form: {},
    COMPREHENSION: _read_comprehension,
    QUESTIONNAIRE: lambda protocol, form: _read_answers(protocol.questionnaire, form),
}
"""Readers of forms, by the step that they belong to."""
