"""Export of a project's answers: tables, a corpus with rationales, and formats of other annotation tools."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy.orm import Session

from expound.data.readers.argilla import write_records
from expound.data.readers.label_studio import write_tasks
from expound.data.readers.marked import make_marked_table
from expound.errors import ExpoundError
from expound.reports.text import escape_formula
from expound_people.kinds import BEFORE, KINDS
from expound_people.participation import find_excluded, load_participations, make_row
from expound_people.protocol.file import digest_protocol, parse_protocol
from expound_people.reporting import to_figure, to_methods_paragraph, to_results_json
from expound_people.results import load_answers, load_marked_examples
from expound_people.tables import AnnotatorAnswer, Project

SCHEMA = pa.schema(
    {
        "study": pa.string(),
        "kind": pa.string(),
        "annotator": pa.string(),
        "example": pa.int64(),
        "phase": pa.string(),
        "method": pa.string(),
        "position": pa.int64(),
        "rank": pa.int64(),
        "guess": pa.string(),
        "prediction": pa.string(),
        "label": pa.string(),
        "changed": pa.list_(pa.string()),
        "changed_prediction": pa.string(),
        "marks": pa.list_(pa.list_(pa.int64())),
        "confidence": pa.int64(),
        "included": pa.bool_(),
        "seconds": pa.float64(),
        "revision": pa.int64(),
        "created": pa.timestamp("us"),
        "updated": pa.timestamp("us"),
    }
)
"""One row per answer; for a ranking, one row per method. Values that an answer does not have are null. `included`:
whether the analysis includes the annotator, who is complete and not flagged by the study's protocol."""


class Export(NamedTuple):
    """A file to download: its title on pages, its media type, and the function that makes its content."""

    title: str
    media: str
    write: Callable[[Session, Project], bytes]


def make_table(session: Session, project: Project) -> pa.Table:
    """Return all answers of a project as a table with the columns of `SCHEMA`."""
    excluded = set(find_excluded(session, project))
    rows: list[dict[str, Any]] = []
    # Excluded answers are exported, too, so that another analysis can decide otherwise.
    for answer in load_answers(session, project):
        is_included = answer.annotator_id not in excluded
        rows += [row | {"included": is_included} for row in _make_rows(project, answer)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def to_csv(session: Session, project: Project) -> bytes:
    """Return all answers as CSV. Text that a spreadsheet would run as a formula gets a leading apostrophe."""
    return _format_csv(SCHEMA.names, make_table(session, project).to_pylist())


def to_people(session: Session, project: Project) -> bytes:
    """Return the annotators as CSV: status, quality, flags, and answers to the protocol's questions."""
    plan = parse_protocol(project.protocol or "")
    rows = [make_row(entry, plan) for entry in load_participations(session, project)]
    # Annotators from different platforms have different columns. A dict keeps their order of appearance.
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    return _format_csv(list(columns), rows)


def to_raw(session: Session, project: Project) -> bytes:
    """Return all answers of every annotator as JSON, with attention checks and training, without tokens."""
    people = []
    for person, _ in load_participations(session, project):
        answers = []
        for answer in person.answers:
            fields = _get_fields(answer, ("phase", "content", "seconds", "revision"))
            answers.append({"example": answer.item.number, "role": answer.item.role} | fields)
        people.append(
            {"annotator": person.name}
            | _get_fields(person, ("source", "status", "slot"))
            | {"steps": [_get_fields(step, ("name", "attempt", "content", "seconds")) for step in person.steps]}
            | {"answers": answers}
        )
    return _format_json(
        {"study": project.name, "protocol_sha256": digest_protocol(project.protocol or ""), "people": people}
    )


def to_protocol(session: Session, project: Project) -> bytes:
    """Return the text of the protocol file, unchanged."""
    return (project.protocol or "").encode()


def to_parquet(session: Session, project: Project) -> bytes:
    """Return all answers of a project as Parquet."""
    return _format_parquet(make_table(session, project))


def to_corpus(session: Session, project: Project) -> bytes:
    """Return the corpus as Parquet, for the reader `parquet:FILE`; labels are names."""
    rows, spans = _make_corpus_rows(session, project), pa.list_(pa.list_(pa.int32()))
    label = pa.float32() if isinstance(rows[0].get("label"), float) else pa.string()
    # Types are given, as pyarrow cannot infer those of columns that are empty or null in all rows.
    types = {"rationale": spans, "rationale_pair": spans, "label": label}
    schema = pa.schema({name: types.get(name, pa.string()) for name in rows[0]})
    return _format_parquet(pa.Table.from_pylist(rows, schema=schema))


def _make_corpus_rows(session: Session, project: Project) -> list[dict[str, Any]]:
    """Return the texts with the rationales that half of their annotators agree on; labels are names."""
    features, rows = make_marked_table(load_marked_examples(session, project))
    names = getattr(features.get("label"), "names", None)
    corpus = []
    for row in rows:
        if names:
            row["label"] = names[row["label"]]
        corpus.append({name: row[name] for name in features})
    return corpus


def to_jsonl(session: Session, project: Project) -> bytes:
    """Return the corpus as JSON lines, for the reader `jsonl:FILE`; labels are names."""
    rows = _make_corpus_rows(session, project)
    return "".join(json.dumps(make_row, ensure_ascii=False) + "\n" for make_row in rows).encode()


def to_label_studio(session: Session, project: Project) -> bytes:
    """Return the texts and marks as tasks that Label Studio imports."""
    return _format_json(write_tasks(load_marked_examples(session, project)))


def to_argilla(session: Session, project: Project) -> bytes:
    """Return the texts and marks as Argilla records."""
    return _format_json(write_records(load_marked_examples(session, project)))


EXPORTS: dict[str, Export] = {
    "answers.csv": Export("All answers (CSV)", "text/csv; charset=utf-8", to_csv),
    "answers.parquet": Export("All answers (Parquet)", "application/vnd.apache.parquet", to_parquet),
    "results.json": Export("All findings (JSON)", "application/json", to_results_json),
    "methods.md": Export("A paragraph on the methods (Markdown)", "text/markdown; charset=utf-8", to_methods_paragraph),
    "figure.svg": Export("A figure of the findings (SVG)", "image/svg+xml", to_figure),
    "rationales.parquet": Export("Corpus with rationales (Parquet)", "application/vnd.apache.parquet", to_corpus),
    "rationales.jsonl": Export("Corpus with rationales (JSON lines)", "application/jsonl", to_jsonl),
    "label-studio.json": Export("Rationales for Label Studio", "application/json", to_label_studio),
    "argilla.json": Export("Rationales for Argilla", "application/json", to_argilla),
}
PROTOCOL_EXPORTS = {
    "people.csv": Export("People: quality, questions (CSV)", "text/csv; charset=utf-8", to_people),
    "raw.json": Export("Everything that was said (JSON)", "application/json", to_raw),
    "protocol.yaml": Export("The protocol (YAML)", "application/yaml", to_protocol),
}
"""Exports of studies that have a protocol."""
EXPORTS |= PROTOCOL_EXPORTS
RATIONALE_EXPORTS = ("rationales.parquet", "rationales.jsonl", "label-studio.json", "argilla.json")


def get_exports(project: Project) -> dict[str, Export]:
    """Return the exports of a project: rationales if its kind is highlight, annotators if it has a protocol."""
    missing: set[str] = set()
    if project.kind != "highlight":
        missing |= set(RATIONALE_EXPORTS)
    if not project.protocol:
        missing |= set(PROTOCOL_EXPORTS)
    return {name: export for name, export in EXPORTS.items() if name not in missing}


def run_export(session: Session, project: Project, name: str) -> tuple[Export, bytes]:
    """Return an export and its content. Raises ExpoundError if the project does not have it."""
    exports = get_exports(project)
    if name not in exports:
        raise ExpoundError(f"this study has no export {name!r:.80}; it has: {', '.join(exports)}")
    return exports[name], exports[name].write(session, project)


def _make_rows(project: Project, answer: AnnotatorAnswer) -> Iterator[dict[str, Any]]:
    content, item = answer.content, answer.item.content
    row: dict[str, Any] = {
        "study": project.name,
        "kind": project.kind,
        "annotator": answer.annotator.name,
        "example": answer.item.number,
        "phase": answer.phase or None,
        "prediction": item["prediction"],
        "label": item["label"],
        "changed": item.get("changed", {}).get("texts"),
        "changed_prediction": item.get("changed", {}).get("prediction"),
        "confidence": content.get("confidence"),
        "seconds": answer.seconds,
        "revision": answer.revision,
        "created": answer.created,
        "updated": answer.updated,
    }
    if project.kind == "rank":
        for place, method in enumerate(content["order"], 1):
            yield row | {"method": method, "position": place, "rank": content["ranks"][method]}
    elif KINDS[project.kind].is_simulation:
        # A guess before the explanation is not due to any method.
        yield row | {"guess": content["guess"], "method": None if answer.phase == BEFORE else content["method"]}
    else:
        yield row | {"marks": content["marks"]}


def _format_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    for row in rows:
        writer.writerow([_escape_cell(row.get(name)) for name in names])
    return text.getvalue().encode()


def _get_fields(value: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _escape_cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    return escape_formula(value) if isinstance(value, str) else value


def _format_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def _format_parquet(content: pa.Table) -> bytes:
    buffer = BytesIO()
    pq.write_table(content, buffer, compression="zstd")
    return buffer.getvalue()
