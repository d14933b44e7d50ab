"""A small dataset in every format that is read from files, made of given texts."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PARTS = ("train", "dev", "test")
TEXTS = tuple(f"a small town {number}" for number in range(30))


def _lines(rows):
    return "\n".join(json.dumps(row) for row in rows).encode()


def _pack_tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _rows(texts):
    names = ("bad", "good")
    return [{"text": text, "label": names[n % 2], "rationale": [[0, len(text)]]} for n, text in enumerate(texts)]


def sst(texts):
    trees = "\n".join(f"({4 * (n % 2)} {' '.join(f'(3 {word})' for word in t.split())})" for n, t in enumerate(texts))
    return {f"{part}.txt": trees.encode() for part in PARTS}


def eraser(texts):
    marks = [[{"start_token": 0, "end_token": 1}]]
    rows = [{"annotation_id": str(n), "classification": "NEG", "evidences": marks} for n in range(len(texts))]
    documents = {f"docs/{n}": text.encode() for n, text in enumerate(texts)}
    return {f"{part}.jsonl": _lines(rows) for part in ("train", "val", "test")} | documents


def snli(texts):
    rows = [{"premise": text, "hypothesis": "they sleep", "label": "contradiction"} for text in texts]
    return {f"{part}.jsonl": _lines(rows) for part in PARTS}


def squad(texts):
    paragraphs = [
        {"context": text, "qas": [{"question": "which?", "answers": [{"text": text, "answer_start": 0}]}]}
        for text in texts
    ]
    return {"data": json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}).encode()}


def mlqe(texts):
    table = "index\toriginal\ttranslation\tz_mean\n" + "\n".join(f"0\t{text}\tein Deckel\t-0.5" for text in texts)
    edits = {
        "a.src": "\n".join(texts), "a.mt": "\n".join("ein Deckel" for _ in texts),
        "a.source_tags": "\n".join(" ".join("OK" for _ in text.split()) for text in texts),
        "a.tags": "\n".join("OK BAD OK OK OK" for _ in texts),
    }  # fmt: skip
    files = {f"en-de-{part}.tar.gz": _pack_tar({f"{part}.tsv": table}) for part in PARTS}
    return files | {"en-de-postediting-train.tar.gz": _pack_tar(edits)}


def table(texts):
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["text", "label", "rationale"])
    writer.writerows((row["text"], row["label"], json.dumps(row["rationale"])) for row in _rows(texts))
    return {"data": buffer.getvalue().encode()}


def jsonl(texts):
    return {"data": _lines(_rows(texts))}


def exchanges(texts):
    source = {"name": "a", "text": "in town"}
    return {"data": _lines({"prompt": text, "sources": [source], "response": "In town."} for text in texts)}


def parquet(texts):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(_rows(texts)), buffer)
    return {"data": buffer.getvalue()}


def labeled(texts):
    return {"data": "\n".join(f"{row['label']} {row['text']}" for row in _rows(texts)).encode()}


def label_studio(texts):
    def task(text):
        value = {"start": 0, "end": len(text), "text": text, "labels": ["why"]}
        return {
            "data": {"text": text},
            "annotations": [
                {
                    "completed_by": 3,
                    "result": [{"from_name": "label", "to_name": "text", "type": "labels", "value": value}],
                }
            ],
        }

    return {"data": json.dumps([task(text) for text in texts]).encode()}


def argilla(texts):
    def record(text):
        span = {"start": 0, "end": len(text), "label": "why"}
        return {"fields": {"text": text}, "responses": {"evidence": [{"value": [span], "user_id": "ada"}]}}

    return {"data": json.dumps([record(text) for text in texts]).encode()}


SAMPLES = {
    "sst": sst, "eraser": eraser, "snli": snli, "squad": squad, "mlqe": mlqe, "csv": table, "jsonl": jsonl,
    "exchanges": exchanges, "parquet": parquet, "labeled": labeled, "label_studio": label_studio, "argilla": argilla,
}  # fmt: skip
"""Functions that make the files of a dataset: content by name in its folder, or by `data` if it is one file."""
READER = {"exchanges": "jsonl"}
"""Readers of the samples that do not have the name of their reader."""


def write_dataset(folder, files):
    """Writes a dataset, and returns its path: the folder or its only file."""
    folder = Path(folder)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "data" if set(files) == {"data"} else folder
