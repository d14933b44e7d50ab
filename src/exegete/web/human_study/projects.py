"""Projects: made from cases, found by name, and who is invited to them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from itertools import chain, count
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError, unknown
from exegete.reports.attributions import Attribution
from exegete.reports.generated import GeneratedAttribution
from exegete.web.human_study.blinding import AnyAttribution
from exegete.web.human_study.items import StudyItem
from exegete.web.human_study.kinds import KINDS, ONLY_PHASE
from exegete.web.human_study.protocol.file import Protocol, parse_protocol
from exegete.web.human_study.protocol.known_answers import make_known_item
from exegete.web.human_study.tables import Annotator, AnnotatorAnswer, Project, utc_now
from exegete.web.human_study.texts import make_translator

NAME_PATTERN = re.compile(r"[\w][\w .-]{0,79}")
TOKEN_BYTES = 32
MAX_INVITATIONS = 200
MAX_NAME_LENGTH = 80
"""Characters of an annotator's name."""


def create_project(
    session: Session,
    name: str,
    cases: Sequence[StudyItem],
    kind: str = "rank",
    *,
    question: str = "",
    labels: Sequence[str] = (),
    seed: int = 0,
    protocol: str | None = None,
    origin: Mapping[str, Any] | None = None,
) -> Project:
    """A new project of these cases, with the marks that they bring.

    Args:
        session: a writing one.
        name: letters, digits, spaces, dots, dashes; at most 80.
        cases: its examples, explained by the same methods.
        kind: one of `KINDS`.
        question: what people are asked; default: the kind's question.
        labels: what the model can answer; default: what it predicted for the cases.
        seed: of the orders in which annotators see things.
        protocol: the text of a protocol's file, whose kind, question and seed are taken instead.
        origin: what it was made of.

    Raises:
        ExegeteError: a name that is taken or unusable, no cases, or cases or labels that are not what the kind needs.
    """
    plan = None if protocol is None else parse_protocol(protocol)
    if plan is not None:
        kind, seed, question = (
            plan.kind,
            plan.seed,
            plan.question or make_translator(plan.language)(f"{plan.text_prefix}_question"),
        )
    check_name_and_kind(name, kind)
    if session.scalar(select(Project.id).where(Project.name == name)) is not None:
        raise ExegeteError(f"there is a study named {name!r} already: choose another name")
    every = (case.prediction for case in cases), (case.changed.prediction for case in cases if case.changed)
    predicted = {answer for answer in chain(*every) if answer is not None}
    answers = list(labels) or sorted(predicted)
    _check_items(cases, kind)
    if KINDS[kind].is_simulation and not (predicted <= set(answers) and len(answers) > 1):
        raise ExegeteError(f"the kind {kind} needs a model that says one of 2 labels or more, found {answers!r:.90}")
    project = Project(
        name=name,
        kind=kind,
        question=question.strip() or KINDS[kind].question,
        seed=seed,
        labels=answers,
        protocol=protocol,
        origin=None if origin is None else dict(origin),
    )
    project.items = [case.to_item(number) for number, case in enumerate(cases)]
    session.add(project)
    session.flush()
    if plan is not None:
        _add_known_items(session, project, plan)
    _store_marks(session, project, cases)
    return project


def _add_known_items(session: Session, project: Project, plan: Protocol) -> None:
    """The protocol's examples with known answers, numbered behind the others."""
    parts = [(part, "training") for part in plan.training] + [(part, "check") for part in plan.attention.items]
    for number, (part, role) in enumerate(parts, len(project.items)):
        item = make_known_item(part, number, role, plan)
        if KINDS[plan.kind].is_simulation and item.model_answer not in project.labels:
            raise unknown("answer of the model", str(item.model_answer), project.labels)
        item.project_id = project.id
        session.add(item)
    session.flush()
    session.expire(project, ["known"])


def check_name_and_kind(name: str, kind: str) -> None:
    """Raises ExegeteError for a name or kind that no study can have."""
    if not NAME_PATTERN.fullmatch(name):
        raise ExegeteError(f"expected a name of letters, digits, spaces, dots and dashes, got {name!r:.90}")
    if kind not in KINDS:
        raise unknown("kind of study", kind, KINDS)


def _check_items(cases: Sequence[StudyItem], kind: str) -> None:
    if not cases:
        raise ExegeteError("a study needs at least one example")
    methods = set(cases[0].explanations)
    if any(set(case.explanations) != methods for case in cases):
        raise ExegeteError("every example of a study needs an explanation by the same methods")
    if len(methods) < KINDS[kind].min_methods:
        fewest, found = KINDS[kind].min_methods, len(methods)
        raise ExegeteError(f"a study of the kind {kind} needs explanations by at least {fewest} methods, found {found}")
    shown = [item for case in cases for item in case.explanations.values()] if KINDS[kind].min_methods else []
    said = [item for item in shown if isinstance(item, Attribution)]
    if len(said) < len(shown):
        _check_generated_answers(shown, kind)
    other = next((item for item in said if item.target_label != item.prediction_label), None)
    if other is not None:
        told = f"{other.target_label} where the model predicts {other.prediction_label}"
        raise ExegeteError(f"a study of the kind {kind} needs explanations of predictions, these explain {told}")
    if KINDS[kind].has_changes and any(case.changed is None for case in cases):
        raise ExegeteError("people foretell answers to changed examples: make this study of --model and --data")
    if kind == "highlight" and any(not case.texts for case in cases):
        raise ExegeteError("evidence can be marked in texts only: choose the kind rank or simulate for images")


def _check_generated_answers(shown: Sequence[AnyAttribution], kind: str) -> None:
    """Generated answers are ranked, each explained for the same text by units of the same size."""
    if kind != "rank":
        raise ExegeteError("explanations of generated answers can be ranked: choose the kind rank")
    units = sorted({item.unit for item in shown if isinstance(item, GeneratedAttribution)})
    if len(units) > 1:
        raise ExegeteError(
            f"people would tell methods by their units ({', '.join(units)}): compare them with one --unit"
        )


def _store_marks(session: Session, project: Project, cases: Sequence[StudyItem]) -> None:
    """Marks that people made elsewhere, as answers of annotators who have no invitation."""
    people: dict[str, Annotator] = {}
    for item, case in zip(project.items, cases, strict=True):
        for person, marks in case.marks.items():
            if person not in people:
                name = _make_unique_name(person, {annotator.name for annotator in people.values()})
                people[person] = Annotator(project_id=project.id, name=name, joined=utc_now())
                session.add(people[person])
                session.flush()
            content = {"marks": [list(mark) for mark in marks]}
            session.add(
                AnnotatorAnswer(annotator_id=people[person].id, item_id=item.id, phase=ONLY_PHASE, content=content)
            )


def _make_unique_name(person: str, taken: Collection[str]) -> str:
    """The person's name, cut to what is kept of one, with a number where somebody else's is cut to the same."""
    ends = chain([""], (f" {number}" for number in count(2)))
    names = (f"{person[: MAX_NAME_LENGTH - len(end)]}{end}" for end in ends)
    return next(name for name in names if name not in taken)


def find_project(session: Session, name: str) -> Project:
    """The project of this name. Raises ExegeteError when there is none."""
    project = session.scalar(select(Project).where(Project.name == name))
    if project is None:
        raise unknown("study", name, session.scalars(select(Project.name)))
    return project


def invite_annotators(session: Session, project: Project, names: Sequence[str]) -> dict[str, str]:
    """New annotators; by name the token of each one's invitation, which is not kept and cannot be shown again."""
    if not 1 <= len(names) <= MAX_INVITATIONS:
        raise ExegeteError(f"expected 1 to {MAX_INVITATIONS} names, got {len(names)}")
    taken = {annotator.name for annotator in project.annotators}
    tokens = {}
    for name in names:
        if not 1 <= len(name) <= MAX_NAME_LENGTH:
            raise ExegeteError(f"expected a name of 1 to {MAX_NAME_LENGTH} characters, got {len(name)}")
        if name in taken or name in tokens:
            raise ExegeteError(f"somebody named {name!r} is invited already: choose another name")
        tokens[name] = secrets.token_urlsafe(TOKEN_BYTES)
        project.annotators.append(Annotator(name=name, token_digest=digest_token(tokens[name])))
    return tokens


def revoke_invitation(session: Session, project: Project, annotator_id: int) -> None:
    """Ends an invitation at once; what was answered is kept."""
    annotator = next((each for each in project.annotators if each.id == annotator_id), None)
    if annotator is None:
        raise ExegeteError("this study has no such invitation")
    annotator.revoked = annotator.revoked or utc_now()


def find_annotator(session: Session, token: str) -> Annotator | None:
    """Whom a token belongs to; None for unknown and revoked ones."""
    annotator = session.scalar(select(Annotator).where(Annotator.token_digest == digest_token(token)))
    return annotator if annotator is not None and annotator.revoked is None else None


def digest_token(token: str) -> str:
    """The SHA-256 digest of a token, stored in its place."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
