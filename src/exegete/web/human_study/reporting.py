"""Material for a paper from a study: results as numbers, a paragraph on its methods, a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web.human_study.analysis.mixed import Mixed, Observed, mixed
from exegete.web.human_study.kinds import AFTER, KINDS
from exegete.web.human_study.people import counts, left_out, taking
from exegete.web.human_study.protocol.file import ChangePart, Protocol, digest_of, main_of, protocol_of
from exegete.web.human_study.results import Findings, answers_of, findings
from exegete.web.human_study.tables import Answer, Project

DID = {
    "rank": "ranked {screen} unnamed explanations of each example, ties allowed",
    "highlight": "marked the {unit}s that they took for evidence of the label",
    "simulate": "predicted the model's answer before and after seeing an explanation",
    "counterfactual": "was told the model's answer and predicted its answer to a changed version, before and after "
    "seeing an explanation of the example as it was",
}


class Interval(NamedTuple):
    """A method's estimate with its 95 % interval, for a figure."""

    method: str
    estimate: float
    low: float
    high: float


def effects(session: Session, project: Project) -> Mixed | None:
    """The mixed model of ranks, or of right second guesses; None where there is too little for one."""
    answers = answers_of(session, project, left_out(session, project))
    try:
        return mixed([row for answer in answers for row in _observed(project, answer)])
    except ExegeteError:
        return None


def results(session: Session, project: Project) -> bytes:
    """All results as JSON, with the protocol's digest; unknown numbers are null."""
    found = findings(session, project, left_out(session, project))
    model = effects(session, project) if project.kind != "highlight" else None
    content = {
        "study": project.name,
        "kind": project.kind,
        "protocol_sha256": None if project.protocol is None else digest_of(project.protocol),
        "origin": project.origin,
        "people": counts(taking(session, project)),
        **{name: getattr(found, name) for name in ("answers", "alpha", "w_examples", "n_examples", "w_people", "f1")},
        "trueskill": [row._asdict() for row in found.ratings],
        "bradley_terry": [row._asdict() for row in found.strengths],
        "simulation": [row._asdict() | {"normalised_gain": row.possible} for row in found.help],
        "plausibility": [row._asdict() for row in found.plausible],
        "mixed_model": None if model is None else _model(model),
    }
    return json.dumps(_plain(content), ensure_ascii=False, indent=1).encode()


def methods(session: Session, project: Project) -> bytes:
    """A paragraph on the study's methods, ready for a paper, as Markdown."""
    people = taking(session, project)
    found = findings(session, project, left_out(session, project))
    plan = None if project.protocol is None else protocol_of(project.protocol)
    parts = [*_who(people, plan, project), *_what(project, plan), *_origin(project), *_analysis(project, found)]
    return (" ".join(parts) + "\n").encode()


def figure(session: Session, project: Project) -> bytes:
    """The estimates with their intervals, as SVG: Bradley–Terry strengths, gains, or plausibility."""
    found = findings(session, project, left_out(session, project))
    label, rows = _intervals(found)
    drawn = Figure(figsize=(5.2, 0.8 + 0.35 * max(1, len(rows))), layout="constrained")
    axes = drawn.subplots()
    for place, row in enumerate(reversed(rows)):
        axes.plot([row.low, row.high], [place, place], color="#0072b2", linewidth=2)
        axes.plot(row.estimate, place, "o", color="#0072b2")
    axes.set_yticks(range(len(rows)), [row.method.replace("$", r"\$") for row in reversed(rows)])
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = BytesIO()
    drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _intervals(found: Findings) -> tuple[str, list[Interval]]:
    if found.strengths:
        rows = [Interval(row.method, row.strength, row.low, row.high) for row in found.strengths]
        return "log strength (Bradley–Terry), 95 % interval", rows
    if found.help:
        rows = [Interval(row.method, row.gain, row.low, row.high) for row in found.help]
        return "gain in right guesses, 95 % interval", rows
    return "AUC against people's marks", [Interval(row.method, row.auc, row.auc, row.auc) for row in found.plausible]


def _observed(project: Project, answer: Answer) -> list[Observed]:
    person, item, content = answer.annotator.name, answer.item.number, answer.content
    if project.kind == "rank":
        return [Observed(person, item, method, float(rank)) for method, rank in content["ranks"].items()]
    if answer.phase == AFTER:
        return [Observed(person, item, content["method"], float(content["guess"] == answer.item.answer))]
    return []


def _model(model: Mixed) -> dict[str, Any]:
    return model._asdict() | {"effects": [effect._asdict() for effect in model.effects]}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _who(people: Sequence[Any], plan: Protocol | None, project: Project) -> list[str]:
    if plan is None:
        return [f"{len(project.annotators)} people took part by invitation."]
    count = counts(people)
    told = ", ".join(f"{number} {name}" for name, number in sorted(count.items()) if name != "flagged")
    where = {"prolific": "on Prolific", "mturk": "on Amazon Mechanical Turk", "open": "by an open link"}
    return [
        f"People were recruited {where[plan.recruiting.platform]} ({told}).",
        f"Of those who completed the study, {count['flagged']} were left out as careless (checks missed, answers that "
        f"were too fast or all alike), which left {sum(each.included for each in people)}.",
        f"The study followed a protocol that was fixed before (SHA-256 {digest_of(project.protocol or '')}): consent, "
        f"{'screening, ' if plan.screening else ''}instructions, {len(plan.training)} training examples with feedback, "
        f"{'a comprehension check, ' if plan.comprehension else ''}the main part with {len(plan.attention.items)} "
        "attention checks, questionnaire.",
    ]


def _what(project: Project, plan: Protocol | None) -> list[str]:
    names = sorted({each.method for item in project.items[:1] for each in item.explanations})
    main = main_of(project.protocol)
    screen, each = min(len(names), main.screen), main.items or len(project.items)
    blocks = " in balanced incomplete blocks" if screen < len(names) and project.kind == "rank" else ""
    by = f" Explanations were made by {', '.join(names)}{blocks}." if names else ""
    shown = {"positive": "their positive scores", "absolute": "their scores' size", "signed": "scores of both signs"}
    rule = f" All showed {shown[main.show]} in the same colours." if names else ""
    did = DID[project.kind].format(screen=screen, unit=main.unit)
    told = f"For {each} of {len(project.items)} examples, in random order, each person {did}.{by}{rule}"
    return [told, *_changed(project, plan)]


def _origin(project: Project) -> list[str]:
    """The models by their weights, and the marks that they were trained on."""
    models = (project.origin or {}).get("models", {})
    told = [
        f"{name} ({made['source']}, weights {made['weights']}"
        + (
            f", trained on {on['source']}, {on['rows']} rows, digest {on['digest']})"
            if (on := made["trained_on"])
            else ")"
        )
        for name, made in models.items()
    ]
    return [f"Models: {'; '.join(told)}."] if told else []


def _changed(project: Project, plan: Protocol | None) -> list[str]:
    """The rule by which examples were changed, and how often the model's answer changed with them."""
    if not KINDS[project.kind].changes:
        return []
    rule = ChangePart() if plan is None else plan.change
    turned = sum(item.answer != item.content["prediction"] for item in project.items)
    how = "removed" if rule.how == "remove" else "replaced by words of other examples"
    chosen = (
        f"of {rule.tries} versions of each, for half of the examples one was taken that changes the model's answer, "
        "as far as there were such, for the others one that does not"
        if rule.balanced
        else "one version of each"
    )
    return [
        f"In changed versions {rule.words} words, drawn by chance (seed {project.seed}), were {how}; {chosen}. The "
        f"model's answer differs in {turned} of {len(project.items)}."
    ]


def _analysis(project: Project, found: Findings) -> list[str]:
    if project.kind == "rank":
        return [
            "Rankings were analysed by TrueSkill, by the Bradley–Terry model with 95 % intervals clustered by person, "
            "and by a linear mixed model of ranks with people and examples as crossed random effects; people agreed "
            f"with Krippendorff's α = {_number(found.alpha)} (ordinal)."
        ]
    if KINDS[project.kind].guesses:
        return [
            "The gain is the share of right guesses with an explanation less that without, with 95 % intervals "
            "bootstrapped over examples; normalised, it is divided by the largest gain there could be. Second guesses "
            f"agreed with Krippendorff's α = {_number(found.alpha)} (nominal)."
        ]
    return [
        "Each method's scores were compared with the words that half of the people marked (AUC, average precision); "
        f"people agreed with F1 = {_number(found.f1)} and Krippendorff's α = {_number(found.alpha)} on "
        f"{main_of(project.protocol).unit}s."
    ]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
