"""Stages of a study with a protocol, from consent to thanks: finding the next one, saving a step, withdrawal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from expound_people.answers import AnnotatorProgress, load_progress
from expound_people.protocol.admission import (
    COMPLETE,
    FAILED,
    LATE,
    SCREENED_OUT,
    WITHDRAWN,
    has_quota_left,
    is_late,
)
from expound_people.protocol.file import Protocol, QuestionPart
from expound_people.tables import Annotator, AnnotatorAnswer, AnnotatorStep, ReplacedToken, utc_now
from expound_people.texts import MissingError

CONSENT, SCREENING, INSTRUCTIONS, TRAINING = "consent", "screening", "instructions", "training"
COMPREHENSION, MAIN, QUESTIONNAIRE, END = "comprehension", "main", "questionnaire", "end"
MAX_ANSWER_LENGTH = 5000
"""Maximum length of an answer in words; the rest is cut off."""
Form = Mapping[str, Sequence[str]]


def find_stage(session: Session, person: Annotator, protocol: Protocol) -> str:
    """Return the stage that an annotator has reached: the first one that is not finished."""
    if person.status or is_late(person, protocol):
        return END
    main, training = load_progress(session, person), load_progress(session, person, TRAINING)
    # Attempts are sorted, so the dict keeps the last one of each step.
    done = {step.name: step for step in load_steps(session, person)}
    has_understood = COMPREHENSION in done and done[COMPREHENSION].content["right"]
    # The stage is computed from what is stored, never kept in a cookie: an annotator can neither skip a stage nor lose
    # one by closing the browser.
    stages = (
        (CONSENT, CONSENT not in done),
        (SCREENING, bool(protocol.screening) and SCREENING not in done),
        (INSTRUCTIONS, INSTRUCTIONS not in done),
        (TRAINING, training.next_place() is not None),
        (COMPREHENSION, protocol.comprehension is not None and not has_understood),
        (MAIN, main.next_place() is not None),
        (QUESTIONNAIRE, bool(protocol.questionnaire) and QUESTIONNAIRE not in done),
    )
    return next((name for name, is_open in stages if is_open), END)


def load_steps(session: Session, person: Annotator) -> list[AnnotatorStep]:
    """Load an annotator's steps outside the examples, earlier attempts first."""
    query = select(AnnotatorStep).where(AnnotatorStep.annotator_id == person.id)
    return list(session.scalars(query.order_by(AnnotatorStep.name, AnnotatorStep.attempt)))


def save_step(
    session: Session, progress: AnnotatorProgress, protocol: Protocol, name: str, form: Form, seconds: float | None
) -> None:
    """Save the form of a step, once, and end participation if the annotator is screened out or fails.

    Raises MissingError if the form is incomplete.
    """
    person = progress.annotator
    content = STEP_READERS[name](protocol, form)
    attempt = 1
    if name == COMPREHENSION:
        attempt += sum(step.name == name for step in load_steps(session, person))
    step = AnnotatorStep(annotator_id=person.id, name=name, attempt=attempt, content=content, seconds=seconds)
    try:
        # A savepoint: a failed insert would otherwise abort the whole transaction on PostgreSQL.
        with session.begin_nested():
            session.add(step)
    except IntegrityError:
        # The form was sent twice at the same time, and the other request has saved it.
        return
    if name == SCREENING:
        fits = all(not question.accept or content[question.name] in question.accept for question in protocol.screening)
        if not fits or not has_quota_left(session, progress.project, protocol, content, person.id):
            set_status(person, SCREENED_OUT)
    max_attempts = protocol.comprehension.attempts if protocol.comprehension else 1
    if name == COMPREHENSION and not content["right"] and attempt >= max_attempts:
        set_status(person, FAILED)


def finish_if_done(session: Session, progress: AnnotatorProgress) -> None:
    """Mark an annotator who has reached the end of the protocol as complete or late, unless another status is set."""
    person, protocol = progress.annotator, progress.protocol
    if protocol is not None and person.status == "" and find_stage(session, person, protocol) == END:
        set_status(person, LATE if is_late(person, protocol) else COMPLETE)


def set_status(person: Annotator, status: str) -> None:
    """End an annotator's participation with a status."""
    person.status, person.ended = status, utc_now()


def withdraw(session: Session, person: Annotator) -> None:
    """Delete an annotator's answers and identity; only the fact of a withdrawal is kept."""
    for table in (AnnotatorAnswer, AnnotatorStep, ReplacedToken):
        session.execute(delete(table).where(table.annotator_id == person.id))
    # The row stays for the counts of a paper. Without digest the token is invalid, and without person and source the
    # platform's id is gone.
    person.person, person.source, person.slot, person.items, person.token_digest = None, None, None, None, None
    count = select(func.count()).where(Annotator.project_id == person.project_id, Annotator.status == WITHDRAWN)
    person.name = f"withdrawn {1 + (session.scalar(count) or 0)}"
    set_status(person, WITHDRAWN)


def _read_consent(protocol: Protocol, form: Form) -> dict[str, Any]:
    # A set, so that one statement sent twice does not count as two.
    if len(set(form.get("agree", ()))) < len(protocol.consent.agree):
        raise MissingError("needs_ticks")
    # The statements themselves are stored, as a proof of what was agreed to.
    return {"agreed": protocol.consent.agree}


def _read_comprehension(protocol: Protocol, form: Form) -> dict[str, Any]:
    questions = protocol.comprehension.questions if protocol.comprehension else []
    answers = [_read_choice(check.choices, form.get(f"q{number}", ())) for number, check in enumerate(questions)]
    return {"given": answers, "right": answers == [question.answer for question in questions]}


def _read_answers(questions: Sequence[QuestionPart], form: Form) -> dict[str, Any]:
    """Read the answers to questions from a form. Raises MissingError for the first one that is required but missing."""
    answers: dict[str, Any] = {}
    for question in questions:
        try:
            answers[question.name] = _read_answer(question, form)
        except MissingError as error:
            if not question.optional:
                raise MissingError("of_question", question=question.question, problem=error) from None
            answers[question.name] = None
    return answers


def _read_answer(question: QuestionPart, form: Form) -> Any:
    values = form.get(question.name, ())
    if question.kind == "choice":
        return _read_choice(question.choices, values)
    if question.kind == "scale":
        points = [str(point) for point in range(1, question.points + 1)]
        answers = []
        for number in range(1, len(question.statements) + 1):
            answers.append(int(_require_one_of(points, form.get(f"{question.name}-{number}", ()))))
        return answers
    text = "".join(values[:1]).strip()[:MAX_ANSWER_LENGTH]
    if not text:
        raise MissingError("needs_answer")
    if question.kind == "number":
        # Nine digits fit every integer type of the exports.
        if not text.isdecimal() or len(text) > 9:
            raise MissingError("needs_number")
        return int(text)
    return text


def _read_choice(choices: Sequence[str], values: Sequence[str]) -> str:
    # Forms send numbers of choices, not their texts, so that nothing else than a choice can be stored.
    return choices[int(_require_one_of([str(number) for number in range(len(choices))], values))]


def _require_one_of(valid: Sequence[str], values: Sequence[str]) -> str:
    if len(values) != 1 or values[0] not in valid:
        raise MissingError("needs_answer")
    return values[0]


STEP_READERS: dict[str, Callable[[Protocol, Form], dict[str, Any]]] = {
    CONSENT: _read_consent,
    SCREENING: lambda protocol, form: _read_answers(protocol.screening, form),
    INSTRUCTIONS: lambda protocol, form: {},
    COMPREHENSION: _read_comprehension,
    QUESTIONNAIRE: lambda protocol, form: _read_answers(protocol.questionnaire, form),
}
"""Functions that read the form of each step."""
