"""A project's answers as files: tables, a corpus with rationales, and what other annotation tools read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from sqlalchemy.orm import Session

from exegete.data.argilla import write_records
from exegete.data.label_studio import write_tasks
from exegete.data.marked import make_marked_table
from exegete.errors import ExegeteError
from exegete.web.human_study.kinds import BEFORE, KINDS
from exegete.web.human_study.participation import find_excluded, load_participations, make_row
from exegete.web.human_study.protocol.file import digest_protocol, parse_protocol
from exegete.web.human_study.reporting import to_figure, to_methods_paragraph, to_results_json
from exegete.web.human_study.results import load_answers, load_marked_examples
from exegete.web.human_study.tables import AnnotatorAnswer, Project

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
"""One row an answer; of a ranking one row a method. What an answer does not have is null. `included`: whether the
analysis takes it, which leaves out people who are flagged or not complete by the study's protocol."""
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


class Export(NamedTuple):
    """A file: what it is for people, its media type, and what makes it."""

    title: str
    media: str
    write: Callable[[Session, Project], bytes]


def make_table(session: Session, project: Project) -> pa.Table:
    """All answers of a project as a table, see `SCHEMA`."""
    out = set(find_excluded(session, project))
    rows = [
        make_row | {"included": answer.annotator_id not in out}
        for answer in load_answers(session, project)
        for make_row in _make_rows(project, answer)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def to_csv(session: Session, project: Project) -> bytes:
    """The answers as CSV. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    return _format_csv(SCHEMA.names, make_table(session, project).to_pylist())


def to_people(session: Session, project: Project) -> bytes:
    """Those who took part as CSV: how it went, what they said to questions, flags."""
    rows = [make_row(each, parse_protocol(project.protocol or "")) for each in load_participations(session, project)]
    return _format_csv(list(dict.fromkeys(name for each in rows for name in each)), rows)


def to_raw(session: Session, project: Project) -> bytes:
    """Everything that was said, checks and training too, as JSON: one entry a person; no token."""
    people = [
        {
            "annotator": each.person.name,
            "source": each.person.source,
            "status": each.person.status,
            "slot": each.person.slot,
            "steps": [_get_fields(step, ("name", "attempt", "content", "seconds")) for step in each.person.steps],
            "answers": [
                {"example": answer.item.number, "role": answer.item.role}
                | _get_fields(answer, ("phase", "content", "seconds", "revision"))
                for answer in each.person.answers
            ],
        }
        for each in load_participations(session, project)
    ]
    return _format_json(
        {"study": project.name, "protocol_sha256": digest_protocol(project.protocol or ""), "people": people}
    )


def to_protocol(session: Session, project: Project) -> bytes:
    """The protocol as its file was."""
    return (project.protocol or "").encode()


def to_parquet(session: Session, project: Project) -> bytes:
    """All answers of a project as a Parquet file."""
    return _format_parquet(make_table(session, project))


def to_dataset(session: Session, project: Project) -> Dataset:
    """The texts with the rationale that half of their annotators agree on, in canonical form."""
    features, rows = make_marked_table(load_marked_examples(session, project))
    data = list(rows)
    return Dataset.from_dict({name: [make_row[name] for make_row in data] for name in features}, features=features)


def to_corpus(session: Session, project: Project) -> bytes:
    """The corpus as Parquet, which `parquet:FILE` reads; labels by their names."""
    rows, spans = _make_corpus_rows(session, project), pa.list_(pa.list_(pa.int32()))
    label = pa.float32() if isinstance(rows[0].get("label"), float) else pa.string()
    kinds = {"rationale": spans, "rationale_pair": spans, "label": label}
    schema = pa.schema({name: kinds.get(name, pa.string()) for name in rows[0]})
    return _format_parquet(pa.Table.from_pylist(rows, schema=schema))


def _make_corpus_rows(session: Session, project: Project) -> list[dict[str, Any]]:
    """The rows of the corpus, labels by their names."""
    dataset = to_dataset(session, project)
    names = getattr(dataset.features.get("label"), "names", None)
    return [dict(make_row) | ({"label": names[make_row["label"]]} if names else {}) for make_row in dataset]


def to_jsonl(session: Session, project: Project) -> bytes:
    """The corpus as JSON lines, which `jsonl:FILE` reads; labels by their names."""
    rows = _make_corpus_rows(session, project)
    return "".join(json.dumps(make_row, ensure_ascii=False) + "\n" for make_row in rows).encode()


def to_label_studio(session: Session, project: Project) -> bytes:
    """The texts and marks as Label Studio imports them."""
    return _format_json(write_tasks(load_marked_examples(session, project)))


def to_argilla(session: Session, project: Project) -> bytes:
    """The texts and marks as records of Argilla."""
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
    """The exports that a project has: rationales where words are marked, people where there is a protocol."""
    without = (() if project.kind == "highlight" else RATIONALE_EXPORTS) + (
        () if project.protocol else tuple(PROTOCOL_EXPORTS)
    )
    return {name: export for name, export in EXPORTS.items() if name not in without}


def run_export(session: Session, project: Project, name: str) -> tuple[Export, bytes]:
    """An export and its content. Raises ExegeteError for one that the project does not have."""
    found = get_exports(project)
    if name not in found:
        raise ExegeteError(f"this study has no export {name!r:.80}; it has: {', '.join(found)}")
    return found[name], found[name].write(session, project)


def _make_rows(project: Project, answer: AnnotatorAnswer) -> Iterator[dict[str, Any]]:
    content, item = answer.content, answer.item.content
    make_row = {
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
            yield make_row | {"method": method, "position": place, "rank": content["ranks"][method]}
    elif KINDS[project.kind].is_simulation:
        yield make_row | {"guess": content["guess"], "method": None if answer.phase == BEFORE else content["method"]}
    else:
        yield make_row | {"marks": content["marks"]}


def _format_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    for each in rows:
        writer.writerow([_escape_cell(each.get(name)) for name in names])
    return text.getvalue().encode()


def _get_fields(value: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _escape_cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_PREFIXES) else value


def _format_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def _format_parquet(content: pa.Table) -> bytes:
    buffer = BytesIO()
    pq.write_table(content, buffer, compression="zstd")
    return buffer.getvalue()
