"""HotpotQA: questions whose answer needs two of ten paragraphs, as prompts for language models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Row, get_field, get_list, parse_json, read_text, require_text
from expound.data.readers.exchanges import exchange_features
from expound.data.readers.layouts import DividedFile
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features

COLUMNS = ("prompt", "sources", "response", "evidence", "kind")


@dataclass(frozen=True, kw_only=True)
class Hotpotqa(DividedFile):
    """Reads questions with paragraphs as sources, named by title; `evidence`: titles of the supporting paragraphs.

    A folder has the published files of the distractor setting. A single file is divided by question (80 % train, 10 %
    dev, 10 % test by a hash of question and seed); `all` is the whole file. Other files of the same form are read too.
    """

    names: ClassVar = {
        "train": ("hotpot_train_v1.1.json",), "dev": ("hotpot_dev_distractor_v1.json",),
    }  # fmt: skip
    card: ClassVar[DataCard] = DataCard(
        name="hotpotqa", what="questions on ten paragraphs, of which the answer needs two; for generated text",
        form="hotpotqa:FOLDER with hotpot_train_v1.1.json, hotpot_dev_distractor_v1.json, or hotpotqa:FILE",
        source="Yang et al. 2018", license="CC BY-SA 4.0",
        example="hotpotqa:corpora/hotpotqa/hotpot_dev_distractor_v1.json",
    )  # fmt: skip

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the questions, divided by their text."""
        from datasets import Features

        known = exchange_features()
        return Features({name: known[name] for name in COLUMNS}), self._read_rows(path)

    def _read_rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        content = parse_json(read_text(path), str(path))
        for number, record in enumerate(get_list({"questions": content}, "questions", str(path)), 1):
            where = f"{path}, question {number}"
            question = require_text(get_field(record, "question", where), "question", where)
            sources = [_parse_source(part, where) for part in get_list(record, "context", where)]
            titles, evidence = {source["name"] for source in sources}, dict[str, None]()
            for fact in get_list(record, "supporting_facts", where):
                title, _ = _parse_titled(fact, "supporting_facts", where)
                if title in titles:
                    evidence[title] = None
            yield (
                question,
                {
                    "prompt": f"{{sources}}\n\nQuestion: {question}\nAnswer:",
                    "sources": sources,
                    "response": " " + require_text(get_field(record, "answer", where), "answer", where).strip(),
                    "evidence": list(evidence),
                    "kind": require_text(record.get("type", "bridge"), "type", where),
                },
            )


def _parse_source(part: Any, where: str) -> Row:
    """Return a paragraph [title, [sentence, …]] as a source."""
    title, sentences = _parse_titled(part, "context", where)
    text = None
    if isinstance(sentences, list) and all(isinstance(sentence, str) for sentence in sentences):
        text = "".join(sentences)
    return {"name": title, "text": require_text(text, "context", where)}


def _parse_titled(part: Any, name: str, where: str) -> tuple[str, Any]:
    if not isinstance(part, list) or len(part) != 2:
        raise ExpoundError(f"{where}: expected pairs that begin with a title in {name!r}, got {part!r:.80}")
    return require_text(part[0], name, where), part[1]
