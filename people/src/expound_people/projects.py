"""Projects: creation from study items, lookup by name, and invitations."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import chain, count
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from expound.errors import ExpoundError, check_choice, unknown
from expound.reports.explanations import Explanation
from expound_people.items import StudyItem
from expound_people.kinds import KINDS, ONLY_PHASE
from expound_people.protocol.file import MAX_SEED, Protocol, get_text_prefix, parse_protocol
from expound_people.protocol.known_answers import make_known_item
from expound_people.tables import Annotator, AnnotatorAnswer, Project, ReplacedToken, is_storable, utc_now
from expound_people.texts import make_translator

NAME_PATTERN = re.compile(r"[\w][\w .-]{0,79}")
# 256 random bits: invitations cannot be guessed, so they need neither a password nor a limit of attempts.
TOKEN_BYTES = 32
REPLACED_TOKEN_TIME = timedelta(minutes=1)
"""Time for which a token is valid after another one has replaced it."""
MAX_INVITATIONS = 200
MAX_NAME_LENGTH = 80
"""Maximum length of an annotator's name."""


def create_project(
    session: Session,
    name: str,
    items: Sequence[StudyItem],
    kind: str = "rank",
    *,
    question: str = "",
    labels: Sequence[str] = (),
    seed: int = 0,
    protocol: str | None = None,
    origin: Mapping[str, Any] | None = None,
) -> Project:
    """Create a project from study items, with the marks that they have.

    Args:
        session: a session that writes.
        name: letters, digits, spaces, dots, dashes; at most 80 characters.
        items: the examples, all explained by the same methods.
        kind: one of `KINDS`.
        question: the question to annotators; default: the kind's.
        labels: the model's possible answers; default: those that it gave to the items.
        seed: random seed of the orders in which annotators see examples and explanations.
        protocol: the text of a protocol file, whose kind, question and seed replace those above.
        origin: models and data, see `describe_origin`.

    Raises:
        ExpoundError: a name that is taken or invalid, no items, or items or labels that do not fit the kind.
    """
    plan = None
    if protocol is not None:
        plan = parse_protocol(protocol)
        kind, seed = plan.kind, plan.seed
        prefix = get_text_prefix(plan.kind, plan.main.unit)
        question = plan.question or make_translator(plan.language)(f"{prefix}_question")
    check_new_study(session, name, kind)
    if not 0 <= seed <= MAX_SEED:
        raise ExpoundError(f"expected a seed from 0 to {MAX_SEED} for a study, got {seed}")
    predicted = {item.prediction for item in items} | {item.changed.prediction for item in items if item.changed}
    predicted.discard(None)
    answers = list(labels) or sorted(label for label in predicted if label is not None)
    _check_items(items, kind)
    if KINDS[kind].is_simulation and not (predicted <= set(answers) and len(answers) > 1):
        raise ExpoundError(f"the kind {kind} needs a model that says one of 2 labels or more, found {answers!r:.90}")
    project = Project(
        name=name,
        kind=kind,
        question=question.strip() or KINDS[kind].question,
        seed=seed,
        labels=answers,
        protocol=protocol,
        origin=None if origin is None else dict(origin),
    )
    project.items = [item.to_item(number) for number, item in enumerate(items)]
    session.add(project)
    # Known examples and marks refer to the ids of the project and its items, which exist only after a flush.
    session.flush()
    if plan is not None:
        _add_known_items(session, project, plan)
    _store_marks(session, project, items)
    return project


def _add_known_items(session: Session, project: Project, plan: Protocol) -> None:
    """Add the protocol's training examples and attention checks, numbered after the other items."""
    parts = [(part, "training") for part in plan.training] + [(part, "check") for part in plan.attention.items]
    for number, (part, role) in enumerate(parts, len(project.items)):
        item = make_known_item(part, number, role, plan)
        if KINDS[plan.kind].is_simulation and item.model_answer not in project.labels:
            raise unknown("answer of the model", str(item.model_answer), project.labels)
        item.project_id = project.id
        session.add(item)
    session.flush()
    # `known` was loaded as empty above, and as a view-only relationship it is not updated by adding items.
    session.expire(project, ["known"])


def check_new_study(session: Session, name: str, kind: str) -> None:
    """Raise ExpoundError for an invalid name, an unknown kind, or a name that a study has already."""
    if not NAME_PATTERN.fullmatch(name):
        raise ExpoundError(f"expected a name of letters, digits, spaces, dots and dashes, got {name!r:.90}")
    check_choice("kind of study", kind, KINDS)
    if session.scalar(select(Project.id).where(Project.name == name)) is not None:
        raise ExpoundError(f"there is a study named {name!r} already: choose another name")


def _check_items(items: Sequence[StudyItem], kind: str) -> None:
    if not items:
        raise ExpoundError("a study needs at least one example")
    methods = set(items[0].explanations)
    if any(set(item.explanations) != methods for item in items):
        raise ExpoundError("every example of a study needs an explanation by the same methods")
    required = KINDS[kind].min_methods
    if len(methods) < required:
        needs = f"explanations by at least {required} methods"
        raise ExpoundError(f"a study of the kind {kind} needs {needs}, found {len(methods)}")
    if required:
        _check_explanations(items, kind)
    if KINDS[kind].has_changes and any(item.changed is None for item in items):
        raise ExpoundError("people foretell answers to changed examples: make this study of --model and --data")
    if kind == "highlight" and any(not item.texts for item in items):
        raise ExpoundError("evidence can be marked in texts only: choose the kind rank or simulate for images")


def _check_explanations(items: Sequence[StudyItem], kind: str) -> None:
    explanations: list[Explanation] = []
    for item in items:
        explanations += item.explanations.values()
    if any(explanation.exchange is not None for explanation in explanations):
        # A generated answer has no list of labels to choose from, so it cannot be predicted on a form.
        if kind != "rank":
            raise ExpoundError("explanations of generated answers can be ranked: choose the kind rank")
        units = sorted({explanation.unit for explanation in explanations})
        if len(units) > 1:
            names = ", ".join(units)
            raise ExpoundError(f"people would tell methods by their units ({names}): compare them with one --unit")
    for explanation in explanations:
        # Annotators are told what the model predicts, so an explanation of another class would mislead them.
        if explanation.prediction is not None and explanation.target.text != explanation.prediction.text:
            target = f"{explanation.target.text} where the model predicts {explanation.prediction.text}"
            raise ExpoundError(f"a study of the kind {kind} needs explanations of predictions, these explain {target}")


def _store_marks(session: Session, project: Project, items: Sequence[StudyItem]) -> None:
    """Store marks that were made with other tools as answers of annotators without an invitation."""
    people: dict[str, Annotator] = {}
    for item, source in zip(project.items, items, strict=True):
        for person, marks in source.marks.items():
            if person not in people:
                name = _make_unique_name(person, {annotator.name for annotator in people.values()})
                people[person] = Annotator(project_id=project.id, name=name, joined=utc_now())
                session.add(people[person])
                session.flush()
            content = {"marks": [list(mark) for mark in marks]}
            annotator_id = people[person].id
            session.add(AnnotatorAnswer(annotator_id=annotator_id, item_id=item.id, phase=ONLY_PHASE, content=content))


def _make_unique_name(person: str, taken: Collection[str]) -> str:
    """Return a name shortened to the maximum length, with a number if the shortened name is taken."""
    ends = chain([""], (f" {number}" for number in count(2)))
    names = (person[: MAX_NAME_LENGTH - len(end)] + end for end in ends)
    return next(name for name in names if name not in taken)


def find_project(session: Session, name: str) -> Project:
    """Return the project of this name. Raises ExpoundError if there is none."""
    project = session.scalar(select(Project).where(Project.name == name))
    if project is None:
        raise unknown("study", name, session.scalars(select(Project.name)))
    return project


def invite_annotators(session: Session, project: Project, names: Sequence[str]) -> dict[str, str]:
    """Add annotators and return the token of each invitation by name.

    Tokens are not stored, so this is the only time that they can be shown.
    """
    if not 1 <= len(names) <= MAX_INVITATIONS:
        raise ExpoundError(f"expected 1 to {MAX_INVITATIONS} names, got {len(names)}")
    taken = {annotator.name for annotator in project.annotators}
    tokens: dict[str, str] = {}
    for name in names:
        if not is_storable(name):
            raise ExpoundError("a name has a character that cannot be stored")
        if not 1 <= len(name) <= MAX_NAME_LENGTH:
            raise ExpoundError(f"expected a name of 1 to {MAX_NAME_LENGTH} characters, got {len(name)}")
        if name in taken or name in tokens:
            raise ExpoundError(f"somebody named {name!r} is invited already: choose another name")
        tokens[name] = secrets.token_urlsafe(TOKEN_BYTES)
        project.annotators.append(Annotator(name=name, token_digest=digest_token(tokens[name])))
    return tokens


def revoke_invitation(session: Session, project: Project, annotator_id: int) -> None:
    """Revoke an invitation at once; the annotator's answers are kept."""
    # Looked up in the project's own annotators, so that the page of one study cannot revoke invitations of another.
    annotator = next((entry for entry in project.annotators if entry.id == annotator_id), None)
    if annotator is None:
        raise ExpoundError("this study has no such invitation")
    annotator.revoked = annotator.revoked or utc_now()


def find_annotator(session: Session, token: str) -> Annotator | None:
    """Return the annotator with this token; None if the token is unknown or revoked."""
    digest = digest_token(token)
    annotator = session.scalar(select(Annotator).where(Annotator.token_digest == digest))
    if annotator is None:
        replaced = select(ReplacedToken.annotator_id).where(ReplacedToken.digest == digest, is_recently_replaced())
        annotator = session.scalar(select(Annotator).where(Annotator.id.in_(replaced)))
    return None if annotator is None or annotator.revoked is not None else annotator


def is_recently_replaced() -> ColumnElement[bool]:
    """Return the condition of replaced tokens that are still valid."""
    return ReplacedToken.replaced > utc_now() - REPLACED_TOKEN_TIME


def digest_token(token: str) -> str:
    """Return the SHA-256 digest of a token, which is stored instead of the token."""
    # A fast hash is enough: tokens have 256 random bits, so there is no dictionary to try. `surrogatepass`, because
    # cookies from outside can hold lone surrogates, which UTF-8 cannot encode.
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
