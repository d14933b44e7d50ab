"""A rehearsal of a protocol: one scripted person takes part before the study exists for others."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from expound.errors import ExpoundError, shorten
from expound_people import answers
from expound_people.projects import find_annotator
from expound_people.protocol import stages
from expound_people.protocol.admission import COMPLETE, StudyFullError, Visitor, admit
from expound_people.protocol.file import Protocol, QuestionPart, parse_protocol
from expound_people.tables import Annotator, Project


def rehearse(session: Session, project: Project) -> None:
    """Play the protocol of a new study through, from admission to the end, and undo all that was stored.

    Raises:
        ExpoundError: a person who answers everything as expected cannot complete the study.
    """
    protocol = parse_protocol(project.protocol or "")
    with session.begin_nested() as savepoint:
        try:
            status = _take_part(session, project, protocol)
        except StudyFullError:
            status = "not admitted"
        # Whatever fails here would be an error on the pages of every participant.
        except Exception as error:
            raise ExpoundError(f"nobody could take part by this protocol: {shorten(error, 200)}") from error
        finally:
            savepoint.rollback()
            session.expire_all()
    if status != COMPLETE:
        raise ExpoundError(f"nobody could complete this protocol: who answers all as expected ends as {status!r}")


def _take_part(session: Session, project: Project, protocol: Protocol) -> str:
    """Return the final status of a person who answers every question."""
    token = admit(session, project, protocol, Visitor("rehearsal", {}, preview=False))
    session.flush()
    person = find_annotator(session, token)
    assert person is not None
    progress = answers.load_progress(session, person)
    while (stage := stages.find_stage(session, person, protocol)) != stages.END:
        if stage in (stages.TRAINING, stages.MAIN):
            _answer_examples(session, person, stages.TRAINING if stage == stages.TRAINING else "")
        else:
            stages.save_step(session, progress, protocol, stage, _fill_step(protocol, stage), None)
        session.flush()
        progress = answers.load_progress(session, person)
    stages.finish_if_done(session, progress)
    return person.status


def _answer_examples(session: Session, person: Annotator, role: str) -> None:
    progress = answers.load_progress(session, person, role)
    for place in range(1, len(progress.items) + 1):
        item = answers.get_item(session, progress, place)
        for phase in progress.kind.phases:
            task = answers.make_task(progress, item, phase)
            # The first rank, mark and label: a form that answers any kind of task.
            ranks = {f"rank-{shown.letter}": ["1"] for shown in task.explanations}
            content = progress.kind.parse_form(ranks | {"unit": ["0"], "guess": ["0"]}, task, phase)
            answers.save_answer(session, progress, item, phase, content, None)


def _fill_step(protocol: Protocol, step: str) -> dict[str, list[str]]:
    """Return the form of a step, with correct and accepted answers."""
    if step == stages.COMPREHENSION:
        checks = protocol.comprehension.questions if protocol.comprehension else []
        return {f"q{number}": [str(check.choices.index(check.answer))] for number, check in enumerate(checks)}
    form = {"agree": list(protocol.consent.agree)}
    for question in (*protocol.screening, *protocol.questionnaire):
        form |= _fill_question(question)
    return form


def _fill_question(question: QuestionPart) -> dict[str, list[str]]:
    if question.kind == "choice":
        accepted: Sequence[str] = question.accept or question.choices
        return {question.name: [str(question.choices.index(accepted[0]))]}
    if question.kind == "scale":
        return {f"{question.name}-{number}": ["1"] for number in range(1, len(question.statements) + 1)}
    return {question.name: ["1"]}
