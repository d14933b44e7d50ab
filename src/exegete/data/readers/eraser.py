"""ERASER: documents, a question about them, its answer as a class, and the passages that people gave as evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import (
    Names,
    Row,
    Side,
    get_field,
    get_list,
    make_row,
    make_text_features,
    read_json_lines,
    read_text,
    require_label,
    require_text,
)
from exegete.data.readers.layouts import FilePerSplit
from exegete.data.spans import Span, merge_marked_words
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from datasets import Features

MOVIES = ("NEG", "POS")
ENTAILMENT = ("entailment", "neutral", "contradiction")
CLASSES: tuple[Names, ...] = (
    MOVIES,
    ENTAILMENT,
    ("False", "True"),  # BoolQ, MultiRC
    ("REFUTES", "SUPPORTS"),  # FEVER
    ("A", "B", "C", "D", "E"),  # CoS-E
    ("significantly decreased", "no significant difference", "significantly increased"),  # Evidence Inference
)
"""The classes of each task; a file's first row says which task it is of."""
Document = tuple[str, list[Span]]
"""A text and its tokens, which evidence is counted in."""
Evidence = tuple[Any, Any, Any]
"""The name of a document or None, and the first token and the one after the last."""


@dataclass(frozen=True, kw_only=True)
class Eraser(FilePerSplit):
    """All evidence of all annotators as the rationale of the documents, which are joined by line ends.

    Movies: the document alone, since all ask the same. e-SNLI: premise and hypothesis. Elsewhere the query is the first
    text and the documents are the second; nobody marked queries.
    """

    card: ClassVar[DataCard] = DataCard(
        name="eraser",
        what="human rationales: film reviews (Movies), MultiRC, BoolQ, FEVER, CoS-E, Evidence Inference, e-SNLI",
        form="eraser:FOLDER of a task with train.jsonl, val.jsonl, test.jsonl and docs/ or docs.jsonl",
        source="DeYoung et al. 2020; Movies: Zaidan and Eisner 2008",
        licence="that of each task; Movies: not stated by the authors, research use", example="eraser:corpora/movies",
    )  # fmt: skip
    names: ClassVar = {"train": ("train.jsonl",), "dev": ("val.jsonl",), "test": ("test.jsonl",)}

    def features(self, path: Path) -> Features:
        """A text or a pair, in the classes of the task."""
        classes = _find_classes(path)
        return make_text_features(classes, pair=classes != MOVIES)

    def read_rows(self, path: Path) -> Iterator[Row]:
        """The annotations of a file."""
        classes, document = _find_classes(path), _make_document_reader(Path(self.path))
        for where, row in read_json_lines(path):
            label = require_label(get_field(row, "classification", where), classes, where)
            name = require_text(get_field(row, "annotation_id", where), "annotation_id", where)
            evidence = _get_evidence(row, where)
            sides = [_get_document_names(row, name, evidence, where)]
            if classes == ENTAILMENT:
                sides = [[f"{name}_premise"], [f"{name}_hypothesis"]]
            texts: list[Side] = [_join_documents(names, evidence, document, where) for names in sides]
            if classes not in (MOVIES, ENTAILMENT):
                texts = [(require_text(get_field(row, "query", where), "query", where), None), *texts]
            yield make_row(*texts) | {"label": label}


def _find_classes(path: Path) -> Names:
    where, row = next(read_json_lines(path))
    label = get_field(row, "classification", where)
    found = next((classes for classes in CLASSES if label in classes), None)
    if found is None:
        valid = "; ".join(", ".join(classes) for classes in CLASSES)
        raise ExegeteError(f"{where}: expected a label of {valid}, got {label!r}")
    return found


def _make_document_reader(base: Path) -> Callable[[str, str], Document]:
    """A function that gives a document by its name, from a folder or a file of all; it takes the place for errors."""
    listing, known = base / "docs.jsonl", dict[str, Document]()
    rows = read_json_lines(listing) if listing.is_file() else ()
    listed_there = {str(get_field(row, "docid", where)): get_field(row, "document", where) for where, row in rows}

    def document(name: str, where: str) -> Document:
        if name not in known:
            if listing.is_file() and name not in listed_there:
                raise ExegeteError(f"{where}: the document {name!r} is not in {listing}")
            content = (
                listed_there[name] if name in listed_there else read_text(_resolve_inside(base / "docs", name, where))
            )
            text = require_text(content, name, where)
            known[name] = text, list(_split_tokens(text, empty=listing.is_file()))
        return known[name]

    return document


def _resolve_inside(folder: Path, name: str, where: str) -> Path:
    """A file of a folder. Raises ExegeteError for a name that leads out of it."""
    path = folder / name
    if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        raise ExegeteError(f"{where}: expected the name of a document in {folder}, got {name!r}")
    return path


def _split_tokens(text: str, *, empty: bool) -> Iterator[Span]:
    """The tokens as the benchmark counts them: between single spaces of stripped lines; `empty` ones count or not."""
    at = 0
    for line in text.split("\n"):
        start = at + len(line) - len(line.lstrip())
        for token in line.strip().split(" "):
            if token or empty:
                yield start, start + len(token)
            start += len(token) + 1
        at += len(line) + 1


def _get_evidence(row: Row, where: str) -> list[Evidence]:
    groups = get_list(row, "evidences", where)
    if not all(isinstance(group, list) for group in groups):
        raise ExegeteError(f"{where}: expected a list of lists in 'evidences'")
    parts = [evidence for group in groups for evidence in group]
    extents = [(get_field(part, "start_token", where), get_field(part, "end_token", where)) for part in parts]
    return [(part.get("docid"), *extent) for part, extent in zip(parts, extents, strict=True)]


def _get_document_names(row: Row, name: str, evidence: list[Evidence], where: str) -> list[str]:
    """The documents of an annotation: those that it lists, those of its evidence, else the one that is called as it."""
    given = get_list(row, "docids", where) if row.get("docids") else ()
    return list(dict.fromkeys(map(str, (*given, *(docid for docid, *_ in evidence if docid))))) or [name]


def _join_documents(
    names: list[str], evidence: list[Evidence], document: Callable[[str, str], Document], where: str
) -> tuple[str, list[list[int]]]:
    """The documents one after the other, and the characters of the evidence in them; without a name, in the first."""
    texts, rationale, at = [], list[list[int]](), 0
    for name in names:
        text, spans = document(name, where)
        marks = [False] * len(spans)
        for start, end in ((start, end) for docid, start, end in evidence if str(docid or names[0]) == name):
            if not (type(start) is type(end) is int and 0 <= start <= end <= len(spans)):
                raise ExegeteError(f"{where}: expected evidence within {len(spans)} tokens, got [{start}, {end}]")
            marks[start:end] = [True] * (end - start)
        words = [(span, mark) for span, mark in zip(spans, marks, strict=True) if span[0] < span[1]]
        rationale += [
            [at + a, at + b] for a, b in merge_marked_words([span for span, _ in words], [mark for _, mark in words])
        ]
        texts.append(text)
        at += len(text) + 1
    return "\n".join(texts), rationale
