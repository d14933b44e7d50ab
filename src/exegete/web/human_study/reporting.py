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
from exegete.web.human_study.analysis.mixed_model import MixedModel, Observation, fit_mixed_model
from exegete.web.human_study.kinds import AFTER, KINDS
from exegete.web.human_study.participation import count_by_status, find_excluded, load_participations
from exegete.web.human_study.protocol.file import ChangePart, Protocol, digest_protocol, get_main_part, parse_protocol
from exegete.web.human_study.results import Findings, compute_findings, load_answers
from exegete.web.human_study.tables import AnnotatorAnswer, Project

TASK_TEXTS = {
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


def fit_effects(session: Session, project: Project) -> MixedModel | None:
    """The mixed model of ranks, or of right second guesses; None where there is too little for one."""
    answers = load_answers(session, project, find_excluded(session, project))
    try:
        return fit_mixed_model([row for answer in answers for row in _collect_observations(project, answer)])
    except ExegeteError:
        return None


def to_results_json(session: Session, project: Project) -> bytes:
    """All results as JSON, with the protocol's digest; unknown numbers are null."""
    found = compute_findings(session, project, find_excluded(session, project))
    model = fit_effects(session, project) if project.kind != "highlight" else None
    content = {
        "study": project.name,
        "kind": project.kind,
        "protocol_sha256": None if project.protocol is None else digest_protocol(project.protocol),
        "origin": project.origin,
        "people": count_by_status(load_participations(session, project)),
        **{name: getattr(found, name) for name in ("answers", "alpha", "w_examples", "n_examples", "w_people", "f1")},
        "trueskill": [row._asdict() for row in found.ratings],
        "bradley_terry": [row._asdict() for row in found.strengths],
        "simulation": [row._asdict() | {"normalised_gain": row.normalised_gain} for row in found.gains],
        "plausibility": [row._asdict() for row in found.plausibility],
        "mixed_model": None if model is None else _model_to_dict(model),
    }
    return json.dumps(_replace_non_finite(content), ensure_ascii=False, indent=1).encode()


def to_methods_paragraph(session: Session, project: Project) -> bytes:
    """A paragraph on the study's methods, ready for a paper, as Markdown."""
    people = load_participations(session, project)
    found = compute_findings(session, project, find_excluded(session, project))
    plan = None if project.protocol is None else parse_protocol(project.protocol)
    parts = [
        *_describe_people(people, plan, project),
        *_describe_task(project, plan),
        *_describe_origin(project),
        *_describe_analysis(project, found),
    ]
    return (" ".join(parts) + "\n").encode()


def to_figure(session: Session, project: Project) -> bytes:
    """The estimates with their intervals, as SVG: Bradley–Terry strengths, gains, or plausibility."""
    found = compute_findings(session, project, find_excluded(session, project))
    label, rows = _collect_intervals(found)
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


def _collect_intervals(found: Findings) -> tuple[str, list[Interval]]:
    if found.strengths:
        rows = [Interval(row.method, row.strength, row.low, row.high) for row in found.strengths]
        return "log strength (Bradley–Terry), 95 % interval", rows
    if found.gains:
        rows = [Interval(row.method, row.gain, row.low, row.high) for row in found.gains]
        return "gain in right guesses, 95 % interval", rows
    return "AUC against people's marks", [Interval(row.method, row.auc, row.auc, row.auc) for row in found.plausibility]


def _collect_observations(project: Project, answer: AnnotatorAnswer) -> list[Observation]:
    person, item, content = answer.annotator.name, answer.item.number, answer.content
    if project.kind == "rank":
        return [Observation(person, item, method, float(rank)) for method, rank in content["ranks"].items()]
    if answer.phase == AFTER:
        return [Observation(person, item, content["method"], float(content["guess"] == answer.item.model_answer))]
    return []


def _model_to_dict(model: MixedModel) -> dict[str, Any]:
    return model._asdict() | {"effects": [effect._asdict() for effect in model.effects]}


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe_people(people: Sequence[Any], plan: Protocol | None, project: Project) -> list[str]:
    if plan is None:
        return [f"{len(project.annotators)} people took part by invitation."]
    count = count_by_status(people)
    told = ", ".join(f"{number} {name}" for name, number in sorted(count.items()) if name != "flagged")
    where = {"prolific": "on Prolific", "mturk": "on Amazon Mechanical Turk", "open": "by an open link"}
    return [
        f"People were recruited {where[plan.recruiting.platform]} ({told}).",
        f"Of those who completed the study, {count['flagged']} were left out as careless (checks missed, answers that "
        f"were too fast or all alike), which left {sum(each.is_included for each in people)}.",
        f"The study followed a protocol that was fixed before (SHA-256 {digest_protocol(project.protocol or '')}): "
        "consent, "
        f"{'screening, ' if plan.screening else ''}instructions, {len(plan.training)} training examples with feedback, "
        f"{'a comprehension check, ' if plan.comprehension else ''}the main part with {len(plan.attention.items)} "
        "attention checks, questionnaire.",
    ]


def _describe_task(project: Project, plan: Protocol | None) -> list[str]:
    names = sorted({each.method for item in project.items[:1] for each in item.explanations})
    main = get_main_part(project.protocol)
    screen, each = min(len(names), main.screen), main.items or len(project.items)
    blocks = " in balanced incomplete blocks" if screen < len(names) and project.kind == "rank" else ""
    by = f" Explanations were made by {', '.join(names)}{blocks}." if names else ""
    shown = {"positive": "their positive scores", "absolute": "their scores' size", "signed": "scores of both signs"}
    rule = f" All showed {shown[main.show]} in the same colours." if names else ""
    did = TASK_TEXTS[project.kind].format(screen=screen, unit=main.unit)
    told = f"For {each} of {len(project.items)} examples, in random order, each person {did}.{by}{rule}"
    return [told, *_describe_changes(project, plan)]


def _describe_origin(project: Project) -> list[str]:
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


def _describe_changes(project: Project, plan: Protocol | None) -> list[str]:
    """The rule by which examples were changed, and how often the model's answer changed with them."""
    if not KINDS[project.kind].has_changes:
        return []
    rule = ChangePart() if plan is None else plan.change
    turned = sum(item.model_answer != item.content["prediction"] for item in project.items)
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


def _describe_analysis(project: Project, found: Findings) -> list[str]:
    if project.kind == "rank":
        return [
            "Rankings were analysed by TrueSkill, by the Bradley–Terry model with 95 % intervals clustered by person, "
            "and by a linear mixed model of ranks with people and examples as crossed random effects; people agreed "
            f"with Krippendorff's α = {_format_number(found.alpha)} (ordinal)."
        ]
    if KINDS[project.kind].is_simulation:
        return [
            "The gain is the share of right guesses with an explanation less that without, with 95 % intervals "
            "bootstrapped over examples; normalised, it is divided by the largest gain there could be. Second guesses "
            f"agreed with Krippendorff's α = {_format_number(found.alpha)} (nominal)."
        ]
    return [
        "Each method's scores were compared with the words that half of the people marked (AUC, average precision); "
        f"people agreed with F1 = {_format_number(found.f1)} and Krippendorff's α = {_format_number(found.alpha)} on "
        f"{get_main_part(project.protocol).unit}s."
    ]


def _format_number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
