"""RULER: facts hidden in long texts (needles in a haystack), as prompts for language models."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.alignment import find_sentence_ends
from expound.data.cards import DataCard
from expound.data.readers.base import Row, get_field, get_list, read_json_lines, require_text
from expound.data.readers.exchanges import exchange_features
from expound.data.readers.hotpotqa import COLUMNS
from expound.data.readers.layouts import DividedFile
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features

DOCUMENT = re.compile(r"(?=Document \d+:)")


@dataclass(frozen=True, kw_only=True)
class Ruler(DividedFile):
    """Reads inputs with a long text between first and last line; the parts of the text are the sources.

    `evidence`: the parts that contain an expected output word by word; null if the outputs are in all parts or in no
    part. `kind`: the name of the file's folder, which is the task's. A single file is divided by its inputs.

    Args:
        parts: number of parts of about equal length, made of whole sentences. Numbered documents are always one part
            per document.
    """

    parts: int = 10
    names: ClassVar = {"dev": ("validation.jsonl",), "test": ("test.jsonl",)}
    card: ClassVar[DataCard] = DataCard(
        name="ruler", what="needles in texts of any length; for generated text",
        form="ruler:FOLDER with validation.jsonl, or ruler:FILE; ?parts=10", source="Hsieh et al. 2024",
        license="Apache 2.0", example="ruler:corpora/ruler/niah_single_2",
    )  # fmt: skip

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the inputs, divided by their text."""
        from datasets import Features

        if self.parts < 2:
            raise ExpoundError(f"expected 2 parts of a text or more, got {self.parts}")
        known = exchange_features()
        return Features({name: known[name] for name in COLUMNS}), self._read_rows(path)

    def _read_rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        for where, record in read_json_lines(path):
            prompt = require_text(get_field(record, "input", where), "input", where).strip()
            outputs = [require_text(output, "outputs", where) for output in get_list(record, "outputs", where)]
            head, _, rest = prompt.partition("\n")
            long, _, question = rest.rpartition("\n")
            texts = [text for text in _split_parts(long, self.parts) if text.strip()]
            if not outputs or not texts:
                raise ExpoundError(f"{where}: expected outputs, and an input of three lines or more")
            prefix = ""
            if record.get("answer_prefix"):
                prefix = require_text(record["answer_prefix"], "answer_prefix", where)
            sources, evidence, placeholders = list[Row](), list[str](), ""
            for number, text in enumerate(texts, 1):
                name = f"part {number}"
                sources.append({"name": name, "text": text})
                placeholders += f"{{{name}}}"
                if any(re.search(rf"(?<!\w){re.escape(output)}(?!\w)", text) for output in outputs):
                    evidence.append(name)
            yield (
                prompt,
                {
                    "prompt": f"{head}\n{placeholders}\n{question}{prefix}",
                    "sources": sources,
                    "response": " " + ", ".join(outputs),
                    "evidence": evidence if 0 < len(evidence) < len(sources) else None,
                    "kind": path.resolve().parent.name,
                },
            )


def _split_parts(text: str, count: int) -> list[str]:
    """Split a text into its numbered documents, or into parts of whole sentences."""
    documents = DOCUMENT.split(text)
    if len(documents) > 2:
        return [documents[0] + documents[1], *documents[2:]]
    ends = find_sentence_ends(text)
    cuts = {0}
    for part in range(1, count + 1):
        # the first sentence that ends at or after an equal share of the text; a long one may end several parts
        cuts.add(ends[bisect_left(ends, len(text) * part / count)])
    return [text[start:end] for start, end in pairwise(sorted(cuts))]
