"""ERASER: documents, a query, its answer as a class, and passages marked as evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    Names,
    Row,
    Side,
    get_field,
    get_list,
    is_inside,
    make_row,
    make_text_features,
    read_json_lines,
    read_text,
    require_label,
    require_text,
)
from expound.data.readers.layouts import FilePerSplit
from expound.data.spans import Span, merge_marked_words
from expound.errors import ExpoundError

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
"""The classes of each task; the label of a file's first row identifies the task."""
Document = tuple[str, list[Span]]
"""A text and the spans of its tokens; evidence is given by numbers of tokens."""
Evidence = tuple[Any, Any, Any]
"""The name of a document or None, and the half-open span of tokens."""


@dataclass(frozen=True, kw_only=True)
class Eraser(FilePerSplit):
    """Reads documents, joined by line ends, with the evidence of all annotators as their rationale.

    Movies: the document alone, because all queries are equal. e-SNLI: premise and hypothesis. Other tasks: the query is
    the first text, without a rationale, and the documents are the second.
    """

    card: ClassVar[DataCard] = DataCard(
        name="eraser",
        what="human rationales: film reviews (Movies), MultiRC, BoolQ, FEVER, CoS-E, Evidence Inference, e-SNLI",
        form="eraser:FOLDER of a task with train.jsonl, val.jsonl, test.jsonl and docs/ or docs.jsonl",
        source="DeYoung et al. 2020; Movies: Zaidan and Eisner 2008",
        license="that of each task; Movies: not stated by the authors, research use", example="eraser:corpora/movies",
    )  # fmt: skip
    names: ClassVar = {"train": ("train.jsonl",), "dev": ("val.jsonl",), "test": ("test.jsonl",)}

    def features(self, path: Path) -> Features:
        """Return the column types of texts or pairs, with the classes of the task."""
        classes = _find_classes(path)
        return make_text_features(classes, pair=classes != MOVIES)

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the annotations of a file."""
        classes, document = _find_classes(path), _make_document_reader(Path(self.path))
        for where, row in read_json_lines(path):
            label = require_label(get_field(row, "classification", where), classes, where)
            name = require_text(get_field(row, "annotation_id", where), "annotation_id", where)
            evidence, texts = _get_evidence(row, where), list[Side]()
            sides = [_get_document_names(row, name, evidence, where)]
            if classes == ENTAILMENT:
                sides = [[f"{name}_premise"], [f"{name}_hypothesis"]]
            elif classes != MOVIES:
                texts.append((require_text(get_field(row, "query", where), "query", where), None))
            for names in sides:
                texts.append(_join_documents(names, evidence, document, where))
            yield make_row(*texts) | {"label": label}


def _find_classes(path: Path) -> Names:
    where, row = next(read_json_lines(path))
    label = get_field(row, "classification", where)
    for classes in CLASSES:
        if label in classes:
            return classes
    valid = "; ".join(map(", ".join, CLASSES))
    raise ExpoundError(f"{where}: expected a label of {valid}, got {label!r}")


def _make_document_reader(base: Path) -> Callable[[str, str], Document]:
    """Return a function of a document's name and a place for errors that reads the document.

    Documents are in the file docs.jsonl or in the folder docs.
    """
    listing, documents, contents = base / "docs.jsonl", dict[str, Document](), dict[str, Any]()
    has_listing = listing.is_file()
    if has_listing:
        for place, row in read_json_lines(listing):
            contents[str(get_field(row, "docid", place))] = get_field(row, "document", place)

    def read_document(name: str, where: str) -> Document:
        if name not in documents:
            folder = base / "docs"
            if not has_listing and not is_inside(folder / name, folder):
                raise ExpoundError(f"{where}: expected the name of a document in {folder}, got {name!r}")
            if not has_listing:
                contents[name] = read_text(folder / name)
            elif name not in contents:
                raise ExpoundError(f"{where}: the document {name!r} is not in {listing}")
            text = require_text(contents[name], name, where)
            documents[name] = text, list(_split_tokens(text, keep_empty=has_listing))
        return documents[name]

    return read_document


def _split_tokens(text: str, *, keep_empty: bool) -> Iterator[Span]:
    """Yield the spans of the tokens as the benchmark counts them: between single spaces of stripped lines."""
    at = 0
    for line in text.split("\n"):
        start = at + len(line) - len(line.lstrip())
        for token in line.strip().split(" "):
            if token or keep_empty:
                yield start, start + len(token)
            start += len(token) + 1
        at += len(line) + 1


def _get_evidence(row: Row, where: str) -> list[Evidence]:
    evidence: list[Evidence] = []
    for group in get_list(row, "evidences", where):
        if not isinstance(group, list):
            raise ExpoundError(f"{where}: expected a list of lists in 'evidences'")
        for part in group:
            start, end = get_field(part, "start_token", where), get_field(part, "end_token", where)
            evidence.append((part.get("docid"), start, end))
    return evidence


def _get_document_names(row: Row, name: str, evidence: list[Evidence], where: str) -> list[str]:
    """Return an annotation's documents: the listed ones and its evidence's, or the document of the same name."""
    names = list[str]()
    if row.get("docids"):
        names += map(str, get_list(row, "docids", where))
    names += [str(docid) for docid, *_ in evidence if docid]
    return list(dict.fromkeys(names)) or [name]


def _join_documents(
    names: list[str], evidence: list[Evidence], document: Callable[[str, str], Document], where: str
) -> tuple[str, list[list[int]]]:
    """Return the documents, joined by line ends, and their rationale; evidence without a document is in the first."""
    texts, rationale, offset = [], list[list[int]](), 0
    for name in names:
        text, spans = document(name, where)
        marks = [False] * len(spans)
        for docid, start, end in evidence:
            if str(docid or names[0]) != name:
                continue
            if not (type(start) is type(end) is int and 0 <= start <= end <= len(spans)):
                raise ExpoundError(f"{where}: expected evidence within {len(spans)} tokens, got [{start}, {end}]")
            marks[start:end] = [True] * (end - start)
        # empty tokens count in the evidence, but have no characters
        has_text = [start < end for start, end in spans]
        for start, end in merge_marked_words(list(compress(spans, has_text)), list(compress(marks, has_text))):
            rationale.append([offset + start, offset + end])
        texts.append(text)
        offset += len(text) + 1
    return "\n".join(texts), rationale
