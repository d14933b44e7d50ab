"""The stages of a study from consent to thanks: a person's next one, and answers that are kept on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from exegete.web.human_study.answers import Walk
from exegete.web.human_study.protocol.admission import COMPLETE, FAILED, LATE, SCREENED_OUT, WITHDRAWN, late, quota_left
from exegete.web.human_study.protocol.file import Protocol, QuestionPart
from exegete.web.human_study.tables import Annotator, Answer, Step, now
from exegete.web.human_study.texts import MissingError

CONSENT, SCREENING, INSTRUCTIONS, TRAINING = "consent", "screening", "instructions", "training"
COMPREHENSION, MAIN, QUESTIONNAIRE, END = "comprehension", "main", "questionnaire", "end"
LONGEST = 5000
"""Characters of an answer in words."""
Form = Mapping[str, Sequence[str]]


def stage(session: Session, way: Walk, training: Walk, protocol: Protocol) -> str:
    """The next stage of a person."""
    person = way.annotator
    if person.status or late(person, protocol):
        return END
    done = {step.name: step for step in steps_of(session, person)}
    tried = done.get(COMPREHENSION)
    needed = (
        (CONSENT, CONSENT not in done),
        (SCREENING, bool(protocol.screening) and SCREENING not in done),
        (INSTRUCTIONS, INSTRUCTIONS not in done),
        (TRAINING, training.next() is not None),
        (COMPREHENSION, protocol.comprehension is not None and not (tried and tried.content["right"])),
        (MAIN, way.next() is not None),
        (QUESTIONNAIRE, bool(protocol.questionnaire) and QUESTIONNAIRE not in done),
    )
    return next((name for name, missing in needed if missing), END)


def steps_of(session: Session, person: Annotator) -> list[Step]:
    """A person's answers outside the examples, earlier attempts first."""
    found = select(Step).where(Step.annotator_id == person.id).order_by(Step.name, Step.attempt)
    return list(session.scalars(found))


def take(session: Session, way: Walk, protocol: Protocol, name: str, form: Form, seconds: float | None) -> None:
    """Keeps what a form says of a step, once, and ends a person's way where it says so.

    Raises MissingError, telling what is missing in the form.
    """
    person = way.annotator
    content = READ[name](protocol, form)
    attempt = 1 + sum(step.name == name for step in steps_of(session, person)) if name == COMPREHENSION else 1
    try:
        with session.begin_nested():
            session.add(Step(annotator_id=person.id, name=name, attempt=attempt, content=content, seconds=seconds))
    except IntegrityError:
        return  # sent twice
    if name == SCREENING:
        fits = all(not each.accept or content[each.name] in each.accept for each in protocol.screening)
        if not fits or not quota_left(session, way.project, protocol, content, person.id):
            end(person, SCREENED_OUT)
    tries = protocol.comprehension.attempts if protocol.comprehension else 1
    if name == COMPREHENSION and not content["right"] and attempt >= tries:
        end(person, FAILED)


def finish(session: Session, way: Walk, training: Walk, protocol: Protocol) -> None:
    """Marks a person as complete, or as late, who has come to the end and is not marked yet."""
    if way.annotator.status == "" and stage(session, way, training, protocol) == END:
        end(way.annotator, LATE if late(way.annotator, protocol) else COMPLETE)


def end(person: Annotator, status: str) -> None:
    """A person's way ends."""
    person.status, person.ended = status, now()


def withdraw(session: Session, person: Annotator) -> None:
    """Deletes all that a person said and who it was; that somebody withdrew is kept."""
    for table in (Answer, Step):
        session.execute(delete(table).where(table.annotator_id == person.id))
    person.person, person.source, person.slot, person.items, person.token_digest = None, None, None, None, None
    count = select(func.count()).where(Annotator.project_id == person.project_id, Annotator.status == WITHDRAWN)
    person.name = f"withdrawn {1 + (session.scalar(count) or 0)}"
    end(person, WITHDRAWN)


def _consent(protocol: Protocol, form: Form) -> dict[str, Any]:
    if len(set(form.get("agree", ()))) < len(protocol.consent.agree):
        raise MissingError("needs_ticks")
    return {"agreed": protocol.consent.agree}


def _comprehension(protocol: Protocol, form: Form) -> dict[str, Any]:
    questions = protocol.comprehension.questions if protocol.comprehension else []
    given = [_choice(each.choices, form.get(f"q{number}", ())) for number, each in enumerate(questions)]
    return {"given": given, "right": given == [each.answer for each in questions]}


def _answers(questions: Sequence[QuestionPart], form: Form) -> dict[str, Any]:
    """Reads a form's answers to questions. Raises MissingError for the first one that needs an answer."""
    found: dict[str, Any] = {}
    for question in questions:
        try:
            found[question.name] = _answer(question, form)
        except MissingError as error:
            if not question.optional:
                raise MissingError("of_question", question=question.question, problem=error) from None
            found[question.name] = None
    return found


def _answer(question: QuestionPart, form: Form) -> Any:
    given = form.get(question.name, ())
    if question.kind == "choice":
        return _choice(question.choices, given)
    if question.kind == "scale":
        points = [str(number) for number in range(1, question.points + 1)]
        every = [form.get(f"{question.name}-{number}", ()) for number in range(1, len(question.statements) + 1)]
        return [int(_among(points, each)) for each in every]
    text = "".join(given[:1]).strip()[:LONGEST]
    if not text:
        raise MissingError("needs_answer")
    if question.kind == "number":
        if not text.isdecimal() or len(text) > 9:
            raise MissingError("needs_number")
        return int(text)
    return text


def _choice(choices: Sequence[str], given: Sequence[str]) -> str:
    return choices[int(_among([str(number) for number in range(len(choices))], given))]


def _among(valid: Sequence[str], given: Sequence[str]) -> str:
    if len(given) != 1 or given[0] not in valid:
        raise MissingError("needs_answer")
    return given[0]


READ: dict[str, Callable[[Protocol, Form], dict[str, Any]]] = {
    CONSENT: _consent,
    SCREENING: lambda protocol, form: _answers(protocol.screening, form),
    INSTRUCTIONS: lambda protocol, form: {},
    COMPREHENSION: _comprehension,
    QUESTIONNAIRE: lambda protocol, form: _answers(protocol.questionnaire, form),
}
"""Readers of forms, by the step that they belong to."""
