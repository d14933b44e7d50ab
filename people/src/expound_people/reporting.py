"""A study's results for a paper: numbers as JSON, a paragraph on methods, a figure."""

from __future__ import annotations

import json
import math
from io import BytesIO

from matplotlib.figure import Figure
from sqlalchemy.orm import Session

from expound.data.provenance import to_json_value
from expound.errors import ExpoundError
from expound_people.analysis.mixed_model import MixedModel, Observation, fit_mixed_model
from expound_people.kinds import AFTER, KINDS
from expound_people.participation import count_people, find_excluded, load_participations
from expound_people.protocol.file import ChangePart, Protocol, digest_protocol, get_main_part, parse_protocol
from expound_people.results import Findings, compute_findings, load_answers
from expound_people.tables import Project

TASK_TEXTS = {
    "rank": "ranked {screen} unnamed explanations of each example, ties allowed",
    "highlight": "marked the {unit}s that are evidence for the label in their view",
    "simulate": "predicted the model's answer before and after seeing an explanation",
    "counterfactual": "were told the model's answer and predicted its answer to a changed version, before and after "
    "seeing an explanation of the original",
}
SHOWN_TEXTS = {"positive": "their positive scores", "absolute": "their scores' size", "signed": "scores of both signs"}


def fit_effects(session: Session, project: Project) -> MixedModel | None:
    """Fit the mixed model of ranks, or of correct second guesses; None for marks, and if there are too few answers."""
    if project.kind == "highlight":
        return None
    observations: list[Observation] = []
    for answer in load_answers(session, project, find_excluded(session, project)):
        person, item, content = answer.annotator.name, answer.item.number, answer.content
        if project.kind == "rank":
            observations += [Observation(person, item, method, rank) for method, rank in content["ranks"].items()]
        elif answer.phase == AFTER:
            is_right = content["guess"] == answer.item.model_answer
            observations.append(Observation(person, item, content["method"], is_right))
    try:
        return fit_mixed_model(observations)
    except ExpoundError:
        return None


def to_results_json(session: Session, project: Project) -> bytes:
    """Return all results as JSON with the protocol's digest; numbers that are undefined are null."""
    findings = compute_findings(session, project, find_excluded(session, project))
    model = fit_effects(session, project)
    mixed_model = None
    if model is not None:
        mixed_model = model._asdict() | {"effects": [effect._asdict() for effect in model.effects]}
    numbers = ("answers", "alpha", "w_examples", "n_examples", "w_people", "f1")
    content = {
        "study": project.name,
        "kind": project.kind,
        "protocol_sha256": None if project.protocol is None else digest_protocol(project.protocol),
        "origin": project.origin,
        "people": count_people(session, project),
        **{name: getattr(findings, name) for name in numbers},
        "trueskill": [row._asdict() for row in findings.ratings],
        "bradley_terry": [row._asdict() for row in findings.strengths],
        "simulation": [row._asdict() | {"normalized_gain": row.normalized_gain} for row in findings.gains],
        "plausibility": [row._asdict() for row in findings.plausibility],
        "mixed_model": mixed_model,
    }
    return json.dumps(to_json_value(content), ensure_ascii=False, indent=1).encode()


def to_methods_paragraph(session: Session, project: Project) -> bytes:
    """Return a paragraph for a paper's section on methods, as Markdown."""
    findings = compute_findings(session, project, find_excluded(session, project))
    plan = parse_protocol(project.protocol) if project.protocol else None
    sentences = [
        *_describe_people(session, project, plan),
        *_describe_task(project, plan),
        *_describe_origin(project),
        *_describe_analysis(project, findings, fit_effects(session, project)),
    ]
    return (" ".join(sentences) + "\n").encode()


def to_figure(session: Session, project: Project) -> bytes:
    """Return a figure (SVG) of the estimates with their intervals: strengths, gains, or plausibility."""
    findings = compute_findings(session, project, find_excluded(session, project))
    label, rows = _collect_intervals(findings)
    figure = Figure(figsize=(5.2, 0.8 + 0.35 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    # The vertical axis points upwards, so rows are reversed to put the best method on top.
    rows = rows[::-1]
    for place, (_, estimate, low, high) in enumerate(rows):
        axes.plot([low, high], [place, place], color="#0072b2", linewidth=2)
        axes.plot(estimate, place, "o", color="#0072b2")
    # A $ in a name would begin matplotlib's math mode.
    axes.set_yticks(range(len(rows)), [method.replace("$", r"\$") for method, *_ in rows])
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = BytesIO()
    # Without a date the same results give the same file.
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _collect_intervals(findings: Findings) -> tuple[str, list[tuple[str, float, float, float]]]:
    """Return the label of the axis, and each method with its estimate and the ends of its interval."""
    if findings.strengths:
        rows = [(row.method, row.strength, row.low, row.high) for row in findings.strengths]
        return "log strength (Bradley–Terry), 95 % interval", rows
    if findings.gains:
        rows = [(row.method, row.gain, row.low, row.high) for row in findings.gains]
        return "gain in right guesses, 95 % interval", rows
    # Plausibility has no interval: a point is drawn.
    return "AUC against people's marks", [(row.method, row.auc, row.auc, row.auc) for row in findings.plausibility]


def _describe_people(session: Session, project: Project, plan: Protocol | None) -> list[str]:
    counts = count_people(session, project)
    if plan is None:
        return [
            f"Of {counts['invited']} people who were invited, {counts['began']} began and {counts['finished']} "
            "answered everything; all answers are analysed."
        ]
    statuses = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()) if name != "flagged")
    platforms = {"prolific": "on Prolific", "mturk": "on Amazon Mechanical Turk", "open": "by an open link"}
    included = sum(entry.is_included for entry in load_participations(session, project))
    screening = "screening, " if plan.screening else ""
    comprehension = "a comprehension check, " if plan.comprehension else ""
    return [
        f"People were recruited {platforms[plan.recruiting.platform]} ({statuses}).",
        f"Of those who completed the study, {counts['flagged']} were left out as careless (checks missed, answers that "
        f"were too fast or all alike), which left {included}.",
        f"The study followed a protocol that was fixed before (SHA-256 {digest_protocol(project.protocol or '')}): "
        f"consent, {screening}instructions, {len(plan.training)} training examples with feedback, {comprehension}the "
        f"main part with {len(plan.attention.items)} attention checks, questionnaire.",
    ]


def _describe_task(project: Project, plan: Protocol | None) -> list[str]:
    main = get_main_part(project.protocol)
    methods = project.methods
    screen, count = min(len(methods), main.screen), main.items or len(project.items)
    task = TASK_TEXTS[project.kind].format(screen=screen, unit=main.unit)
    text = f"People {task}; each was given {count} of {len(project.items)} examples, in random order."
    if methods:
        blocks = " in balanced incomplete blocks" if screen < len(methods) and project.kind == "rank" else ""
        text += f" Explanations were made by {', '.join(methods)}{blocks}."
        text += f" All showed {SHOWN_TEXTS[main.show]} in the same colors."
    return [text, *_describe_changes(project, plan)]


def _describe_origin(project: Project) -> list[str]:
    """Describe the models by their weights, and the data that they were trained on."""
    descriptions = []
    for name, model in (project.origin or {}).get("models", {}).items():
        text = f"{name} ({model['source']}, weights {model['weights']}"
        if model["trained_on"]:
            data = model["trained_on"]
            text += f", trained on {data['source']}, {data['rows']} rows, digest {data['digest']}"
        descriptions.append(f"{text})")
    return [f"Models: {'; '.join(descriptions)}."] if descriptions else []


def _describe_changes(project: Project, plan: Protocol | None) -> list[str]:
    """Describe how examples were changed, and how often the model's answer changed with them."""
    if not KINDS[project.kind].has_changes:
        return []
    rule = ChangePart() if plan is None else plan.change
    changed = sum(item.model_answer != item.content["prediction"] for item in project.items)
    how = "removed" if rule.how == "remove" else "replaced by words of other examples"
    versions = "one version of each"
    if rule.balanced:
        versions = (
            f"of {rule.tries} versions of each, for half of the examples one was taken that changes the model's "
            "answer, as far as there were such, for the others one that does not"
        )
    return [
        f"In changed versions {rule.words} words, drawn by chance (seed {project.seed}), were {how}; {versions}. The "
        f"model's answer differs in {changed} of {len(project.items)}."
    ]


def _describe_analysis(project: Project, findings: Findings, model: MixedModel | None) -> list[str]:
    """Describe the analyses whose results exist: few answers give no interval, no agreement and no mixed model."""
    if not findings.answers:
        return ["There are no answers yet."]
    level, agreed = "nominal", "Second guesses agreed"
    if project.kind == "rank":
        level, agreed = "ordinal", "People agreed"
        analyses = ["TrueSkill"]
        if not any(math.isnan(row.low) for row in findings.strengths):
            analyses.append("the Bradley–Terry model with 95 % intervals clustered by person")
        if model is not None and model.converged:
            analyses.append("a linear mixed model of ranks with people and examples as crossed random effects")
        sentences = [f"Rankings were analysed by {'; '.join(analyses)}."]
    elif KINDS[project.kind].is_simulation:
        sentences = [
            "The gain is the share of right guesses with an explanation less that without, with 95 % intervals "
            "bootstrapped over examples; normalized, it is divided by the largest possible gain."
        ]
    else:
        agreed = f"Marks of {get_main_part(project.protocol).unit}s agreed"
        sentences = [
            "Each method's scores were compared with the words that half of the people marked (AUC, average precision)."
        ]
        if not math.isnan(findings.f1):
            sentences.append(f"Two people's marks agreed with F1 = {findings.f1:.2f}.")
    if not math.isnan(findings.alpha):
        sentences.append(f"{agreed} with Krippendorff's α = {findings.alpha:.2f} ({level}).")
    return sentences
