"""Who may take part: platforms' parameters, quotas, and which examples a new person gets."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web.human_study.projects import TOKEN_BYTES, digest_token
from exegete.web.human_study.protocol.file import Protocol
from exegete.web.human_study.results import find_widest_interval
from exegete.web.human_study.tables import Annotator, Project, utc_now

COMPLETE, SCREENED_OUT, FAILED, LATE, WITHDRAWN = "complete", "screened out", "failed", "late", "withdrawn"
PARAMETERS = {
    "prolific": ("PROLIFIC_PID", "STUDY_ID", "SESSION_ID"),
    "mturk": ("workerId", "hitId", "assignmentId"),
    "open": (),
}
"""Parameters in the address of each platform; the first says who it is, the last which visit."""
PREVIEW = "ASSIGNMENT_ID_NOT_AVAILABLE"
MAX_PARAMETER_LENGTH = 100
"""Characters of a parameter."""


class StudyFullError(Exception):
    """Nobody more is needed, or this person has taken part."""


class Visitor(NamedTuple):
    """Who follows a study's link. `preview`: only looks, and cannot begin."""

    person: str
    source: Mapping[str, str]
    preview: bool


def read_visitor(protocol: Protocol, query: Mapping[str, str]) -> Visitor:
    """Who a link's parameters say it is. Raises ExegeteError when the platform's are missing."""
    names = PARAMETERS[protocol.recruiting.platform]
    source = {name: query.get(name, "")[:MAX_PARAMETER_LENGTH] for name in names}
    if not names:
        return Visitor(secrets.token_hex(8), {}, preview=False)
    preview = source[names[-1]] == PREVIEW
    missing = [name for name in names if not source[name].strip()]
    if missing and not preview:
        raise ExegeteError(f"this study's link comes from {protocol.recruiting.platform} and brings {', '.join(names)}")
    return Visitor(source[names[0]], source, preview)


def is_late(annotator: Annotator, protocol: Protocol) -> bool:
    """Whether the time of somebody who has not finished is over."""
    minutes = protocol.recruiting.minutes
    return minutes is not None and annotator.status == "" and utc_now() > _end(annotator.created, minutes)


def admit(session: Session, project: Project, protocol: Protocol, who: Visitor) -> str:
    """Lets somebody in, or in again with the same parameters; the token of the new or returning person.

    Raises:
        FullError: nobody more is needed, or the person has taken part in another visit.
    """
    session.execute(select(Project.id).where(Project.id == project.id).with_for_update())
    token = secrets.token_urlsafe(TOKEN_BYTES)
    known = session.scalar(select(Annotator).where(Annotator.project_id == project.id, Annotator.person == who.person))
    if known is not None:
        if known.source != dict(who.source):
            raise StudyFullError
        known.token_digest = digest_token(token)
        return token
    active = _find_active(project, protocol)
    if count_open_places(session, project, protocol, active) <= 0:
        raise StudyFullError
    slot = next(number for number in range(len(active) + 1) if number not in {each.slot for each in active})
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


def count_open_places(
    session: Session, project: Project, protocol: Protocol, active: Sequence[Annotator] | None = None
) -> int:
    """How many more people are wanted now; 0 also where intervals are narrow enough to stop."""
    active = _find_active(project, protocol) if active is None else active
    stop, complete = protocol.stop, sum(each.status == COMPLETE for each in active)
    if stop is not None and complete >= stop.least and find_widest_interval(session, project) <= stop.width:
        return 0
    bounds = [protocol.recruiting.people or len(active) + 1]
    if protocol.main.overlap is not None:
        places = protocol.main.overlap * len(project.items)
        bounds.append(-(-places // min(protocol.main.items or len(project.items), len(project.items))))
    return min(bounds) - len(active)


def has_quota_left(session: Session, project: Project, protocol: Protocol, answers: Mapping[str, str], me: int) -> bool:
    """Whether nobody else, complete or under way, has filled a quota that these screening answers belong to."""
    quotas = protocol.recruiting.quotas
    if not quotas:
        return True
    session.execute(select(Project.id).where(Project.id == project.id).with_for_update())
    given = [step.content for each in _find_active(project, protocol) if each.id != me for step in each.steps]
    counts = {name: Counter(content.get(name) for content in given) for name in quotas}
    return all(counts[name][answers[name]] < quotas[name].get(answers[name], len(given) + 1) for name in quotas)


def _find_active(project: Project, protocol: Protocol) -> list[Annotator]:
    """Those who are complete or may still be."""
    there = (each for each in project.annotators if each.slot is not None and each.status in ("", COMPLETE))
    return [each for each in there if not is_late(each, protocol)]


def _assign_items(project: Project, protocol: Protocol, active: Sequence[Annotator], slot: int) -> list[int]:
    """The examples that fewest people have, in random order, and the checks between them."""
    generator = np.random.default_rng([protocol.seed, slot, len(project.annotators)])
    had = Counter(item for each in active for item in each.items or ())
    main = [item.id for item in project.items]
    drawn = [main[place] for place in generator.permutation(len(main))]
    drawn.sort(key=lambda item: had[item])  # stable: chance decides among equals
    chosen = drawn[: protocol.main.items or len(main)]
    order = [chosen[place] for place in generator.permutation(len(chosen))]
    checks = [item.id for item in project.known if item.role == "check"]
    for number, place in enumerate(_spread_checks(len(checks), len(order), generator)):
        order.insert(place + number, checks[number])
    return order


def _spread_checks(checks: int, places: int, generator: np.random.Generator) -> list[int]:
    """A random place in each of as many equal stretches as there are checks."""
    edges = [number * places // max(1, checks) for number in range(checks + 1)]
    return [int(generator.integers(low, max(low + 1, high))) for low, high in pairwise(edges)]


def _end(began: datetime, minutes: int) -> datetime:
    return began + timedelta(minutes=minutes)
