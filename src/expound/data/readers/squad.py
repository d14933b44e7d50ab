"""SQuAD: questions whose answer is a span of a paragraph, or that have no answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    Row,
    get_field,
    get_list,
    make_row,
    make_text_features,
    parse_json,
    read_text,
    require_answer,
    require_text,
)
from expound.data.readers.layouts import DividedFile

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class Squad(DividedFile):
    """Reads questions, paragraphs and distinct answers; a question without an answer has [].

    A folder has the published splits. A single file is divided by paragraph (80 % train, 10 % dev, 10 % test by a hash
    of text and seed), so that all questions on a paragraph share a split; `all` is the whole file.

    Args:
        sentences: use only the sentence of the first answer as context, and leave out questions without an answer.
    """

    names: ClassVar = {
        "train": ("train-v2.0.json", "train-v1.1.json"), "dev": ("dev-v2.0.json", "dev-v1.1.json"),
    }  # fmt: skip
    sentences: bool = False

    card: ClassVar[DataCard] = DataCard(
        name="squad", what="questions about a paragraph, answered by a span or by none",
        form="squad:FOLDER with train-v2.0.json, dev-v2.0.json (or v1.1), or squad:FILE, divided by paragraph",
        source="Rajpurkar et al. 2016, 2018", license="CC BY-SA 4.0", example="squad:corpora/squad/dev-v2.0.json",
    )  # fmt: skip

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the questions, divided by their paragraphs."""
        return make_text_features(None, pair=True, answer=True), self._read_rows(path)

    def _read_rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        for where, paragraph in _read_paragraphs(path):
            context = require_text(get_field(paragraph, "context", where), "context", where)
            for question in get_list(paragraph, "qas", where):
                row = _make_row(question, context, where)
                if row["answer"] or not self.sentences:
                    yield context, _shorten_to_sentence(row) if self.sentences else row


def _read_paragraphs(path: Path) -> Iterator[tuple[str, Any]]:
    content = parse_json(read_text(path), str(path))
    for i, article in enumerate(get_list(content, "data", str(path)), start=1):
        for j, paragraph in enumerate(get_list(article, "paragraphs", f"{path}, article {i}"), start=1):
            yield f"{path}, article {i}, paragraph {j}", paragraph


def _make_row(question: Any, context: str, where: str) -> Row:
    text = require_text(get_field(question, "question", where), "question", where)
    spans = list[list[int]]()
    for answer in get_list(question, "answers", where):
        spot = f"{where}, {text!r}"
        answer_text = require_text(get_field(answer, "text", spot), "text", spot)
        span = require_answer(answer_text, get_field(answer, "answer_start", spot), context, spot)
        if span not in spans:
            spans.append(span)
    return make_row((text, None), (context, None)) | {"answer": spans}


def _shorten_to_sentence(row: Row) -> Row:
    """Return the row with the sentence of its first answer as context, and the answers in this sentence."""
    context, (begin, end) = row["text_pair"], row["answer"][0]
    before, stop = context.rfind(". ", 0, begin), context.find(". ", end) + 1 or len(context)
    start = 0 if before < 0 else before + 2
    inside = [[a - start, b - start] for a, b in row["answer"] if start <= a and b <= stop]
    return row | {"text_pair": context[start:stop], "answer": inside}
