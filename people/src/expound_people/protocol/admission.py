"""Admission of annotators: platform parameters, quotas, and the assignment of examples."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from expound.errors import ExpoundError
from expound_people.projects import TOKEN_BYTES, digest_token, is_recently_replaced
from expound_people.protocol.file import Protocol
from expound_people.results import find_widest_interval
from expound_people.tables import Annotator, Project, ReplacedToken, utc_now

COMPLETE, SCREENED_OUT, FAILED, LATE, WITHDRAWN = "complete", "screened out", "failed", "late", "withdrawn"
PARAMETERS = {
    "prolific": ("PROLIFIC_PID", "STUDY_ID", "SESSION_ID"),
    "mturk": ("workerId", "hitId", "assignmentId"),
    "open": (),
}
"""Query parameters of each platform's links; the first one identifies the person, the last one the visit."""
# Mechanical Turk shows the page to workers who have not accepted the task yet with this assignment id.
PREVIEW = "ASSIGNMENT_ID_NOT_AVAILABLE"
MAX_PARAMETER_LENGTH = 100
"""Maximum length of a parameter; the rest is cut off."""


class StudyFullError(Exception):
    """The study needs no more annotators, or the person has already taken part."""


class Visitor(NamedTuple):
    """A person who opens a study's link; with `preview` they cannot begin."""

    person: str
    source: Mapping[str, str]
    preview: bool


def read_visitor(protocol: Protocol, query: Mapping[str, str]) -> Visitor:
    """Read the visitor from a link's parameters. Raises ExpoundError if parameters of the platform are missing."""
    names = PARAMETERS[protocol.recruiting.platform]
    source = {name: query.get(name, "")[:MAX_PARAMETER_LENGTH] for name in names}
    if not names:
        # Anybody may come by an open link, any number of times: every visit is a new person.
        return Visitor(secrets.token_hex(8), {}, preview=False)
    preview = source[names[-1]] == PREVIEW
    missing = [name for name in names if not source[name].strip()]
    if missing and not preview:
        raise ExpoundError(f"this study's link comes from {protocol.recruiting.platform} and brings {', '.join(names)}")
    return Visitor(source[names[0]], source, preview)


def is_late(annotator: Annotator, protocol: Protocol) -> bool:
    """Return whether an annotator who has not finished is over the time limit."""
    minutes = protocol.recruiting.minutes
    return minutes is not None and annotator.status == "" and utc_now() > annotator.created + timedelta(minutes=minutes)


def admit(session: Session, project: Project, protocol: Protocol, who: Visitor) -> str:
    """Admit a visitor, or readmit one with the same parameters, and return a new token.

    Raises:
        StudyFullError: no more annotators are needed, or the person has taken part in another visit.
    """
    # Locking the project's row admits one visitor at a time. Otherwise parallel requests could count the same free
    # place and take the same slot.
    session.execute(select(Project.id).where(Project.id == project.id).with_for_update())
    token = secrets.token_urlsafe(TOKEN_BYTES)
    same_person = (Annotator.project_id == project.id, Annotator.person == who.person)
    earlier = session.scalar(select(Annotator).where(*same_person))
    if earlier is not None:
        if earlier.source != dict(who.source):
            raise StudyFullError
        # Somebody who returns on another device gets a new token; the old one is not known, and becomes invalid after
        # a moment: of two requests of a double click, the browser may keep the cookie of either.
        _replace_token(session, earlier, digest_token(token))
        return token
    active = _find_active(project, protocol)
    if _count_open_places(session, project, protocol, active) <= 0:
        raise StudyFullError
    # The smallest free slot: slots of annotators who withdrew or failed are used again, to keep the design balanced.
    taken = {annotator.slot for annotator in active}
    slot = min(set(range(len(active) + 1)) - taken)
    project.annotators.append(
        Annotator(
            name=f"P{len(project.annotators) + 1:03d}",
            token_digest=digest_token(token),
            person=who.person,
            source=dict(who.source),
            slot=slot,
            items=_assign_items(project, protocol, active, slot),
            joined=utc_now(),
        )
    )
    return token


def _replace_token(session: Session, person: Annotator, digest: str) -> None:
    """Give an annotator another token, and remember the digest of the one before."""
    session.execute(delete(ReplacedToken).where(ReplacedToken.annotator_id == person.id, ~is_recently_replaced()))
    if person.token_digest is not None:
        session.add(ReplacedToken(digest=person.token_digest, annotator_id=person.id))
    person.token_digest = digest


def _count_open_places(session: Session, project: Project, protocol: Protocol, active: Sequence[Annotator]) -> int:
    """Return how many more annotators are needed; 0 or less if the study is full or its intervals are narrow enough."""
    stop, complete = protocol.stop, sum(annotator.status == COMPLETE for annotator in active)
    if stop is not None and complete >= stop.least and find_widest_interval(session, project) <= stop.width:
        return 0
    # Without a bound there is always one open place.
    bounds = [protocol.recruiting.people or len(active) + 1]
    if protocol.main.overlap is not None:
        answers = protocol.main.overlap * len(project.items)
        per_person = min(protocol.main.items or len(project.items), len(project.items))
        bounds.append(ceil(answers / per_person))
    return min(bounds) - len(active)


def has_quota_left(session: Session, project: Project, protocol: Protocol, answers: Mapping[str, str], me: int) -> bool:
    """Return whether no quota of these screening answers is filled by other active annotators; `me` is an id."""
    quotas = protocol.recruiting.quotas
    if not quotas:
        return True
    # One annotator at a time, as in `admit`: two could otherwise take the last place of a quota.
    session.execute(select(Project.id).where(Project.id == project.id).with_for_update())
    contents: list[Mapping[str, Any]] = []
    for annotator in _find_active(project, protocol):
        if annotator.id != me:
            contents += [step.content for step in annotator.steps]
    for name, quota in quotas.items():
        answer = answers[name]
        if answer in quota and sum(content.get(name) == answer for content in contents) >= quota[answer]:
            return False
    return True


def _find_active(project: Project, protocol: Protocol) -> list[Annotator]:
    """Return the annotators who are complete or can still complete the study."""
    # Only admitted annotators have a slot; invited ones do not count.
    admitted = [person for person in project.annotators if person.slot is not None and person.status in ("", COMPLETE)]
    return [person for person in admitted if not is_late(person, protocol)]


def _assign_items(project: Project, protocol: Protocol, active: Sequence[Annotator], slot: int) -> list[int]:
    """Draw the examples that the fewest annotators have, in random order, and put the attention checks between them."""
    generator = np.random.default_rng([protocol.seed, slot, len(project.annotators)])
    counts: Counter[int] = Counter()
    for annotator in active:
        counts.update(annotator.items or ())
    main = [item.id for item in project.items]
    shuffled = [main[place] for place in generator.permutation(len(main))]
    # The sort is stable, so examples with equal counts stay in random order.
    shuffled.sort(key=lambda item: counts[item])
    chosen = shuffled[: protocol.main.items or len(main)]
    order = [chosen[place] for place in generator.permutation(len(chosen))]
    checks = [item.id for item in project.known if item.role == "check"]
    # The places are divided into one equal stretch per check, which gets a random place in it.
    edges = [number * len(order) // max(1, len(checks)) for number in range(len(checks) + 1)]
    for number, (low, high) in enumerate(pairwise(edges)):
        # Each check that was inserted shifts the places after it by one.
        order.insert(int(generator.integers(low, max(low + 1, high))) + number, checks[number])
    return order
