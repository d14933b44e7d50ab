"""Stanford Sentiment Treebank: parse trees with a sentiment from 0 to 4 for every phrase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Row, read_text, require_text, split_lines
from expound.data.readers.layouts import FilePerSplit
from expound.data.spans import join_words, merge_marked_words
from expound.errors import ExpoundError

NEUTRAL = 2
_PIECE = re.compile(r"[()]|[^ ()]+")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


@dataclass(frozen=True, slots=True)
class Phrase:
    """A node of a parse tree.

    Attributes:
        label: sentiment, 0 to 4.
        children: the phrases that it consists of; empty for a leaf.
        word: the word of a leaf.
        inner: the greatest strength of its proper descendants.
    """

    label: int
    children: tuple[Phrase, ...] = ()
    word: str = ""
    inner: float = 0.0

    @property
    def strength(self) -> float:
        """|label − 2| / 2, the distance of the sentiment from neutral: 0, 0.5 or 1."""
        return abs(self.label - NEUTRAL) / 2

    @property
    def explains(self) -> bool:
        """Whether its sentiment is stronger than the sentiment of every phrase within it."""
        return not self.children or self.strength > self.inner


@dataclass(frozen=True, kw_only=True)
class Sst(FilePerSplit):
    """Reads sentences whose root is not neutral; words are joined by single spaces, brackets unescaped, case is kept.

    The rationale follows the heuristic of Carton et al. (2020) as Explanation Regularization uses it. From the root
    down, a phrase that is stronger than each of its proper descendants (every leaf is) gives its strength to all of its
    words, and is not divided further. Words with a strength of at least 0.5 are the rationale.
    """

    card: ClassVar[DataCard] = DataCard(
        name="sst", what="film reviews, sentence by sentence; rationales from phrase sentiments",
        form="sst:FOLDER with train.txt, dev.txt, test.txt (trees in brackets)",
        source="Socher et al. 2013; rationales after Carton et al. 2020",
        license="not stated by the authors; research use", example="sst:corpora/sst",
    )  # fmt: skip

    names: ClassVar = {"train": ("train.txt",), "dev": ("dev.txt",), "test": ("test.txt",)}
    labels: ClassVar = ("negative", "positive")

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the sentences of a file, except sentences with a neutral root."""
        for where, line in split_lines(read_text(path), str(path)):
            root = parse(line, where)
            if root.label == NEUTRAL:
                continue
            words, scores = zip(*iterate_strengths(root), strict=True)
            text, spans = join_words(words)
            yield {
                "text": require_text(text, "text", where),
                "label": int(root.label > NEUTRAL),
                "rationale": merge_marked_words(spans, [score >= 0.5 for score in scores]),
            }


def parse(line: str, where: str) -> Phrase:
    """Parse a tree in brackets, such as `(3 (2 so) (3 good))`. Raises ExpoundError for another text."""
    # a stack instead of recursion, since a damaged file may nest deeper than Python recurses
    pieces, stack, roots = _PIECE.findall(line.strip()), list[list[str | Phrase]](), list[Phrase]()
    for piece in pieces:
        if piece == "(":
            stack.append([])
        elif not stack:
            raise ExpoundError(f"{where}: expected a tree in brackets, got {piece!r} outside of one")
        elif piece == ")":
            phrase = _make_phrase(stack.pop(), where)
            (stack[-1] if stack else roots).append(phrase)
        else:
            stack[-1].append(piece)
    if stack or len(roots) != 1:
        raise ExpoundError(f"{where}: expected one tree with balanced brackets, got {line[:60]!r}")
    return roots[0]


def iterate_strengths(root: Phrase) -> Iterator[tuple[str, float]]:
    """Yield each word with the strength of the phrase that explains it."""
    todo: list[tuple[Phrase, float | None]] = [(root, None)]
    while todo:
        phrase, inherited = todo.pop()
        strength = inherited
        if inherited is None and phrase.explains:
            strength = phrase.strength
        if phrase.children:
            for child in reversed(phrase.children):
                todo.append((child, strength))
        else:
            yield phrase.word, strength or 0.0


def _make_phrase(parts: list[str | Phrase], where: str) -> Phrase:
    label, *rest = parts or [""]
    if not isinstance(label, str) or label not in {"0", "1", "2", "3", "4"}:
        raise ExpoundError(f"{where}: expected a sentiment of 0 to 4 after each bracket, got {str(label)[:20]!r}")
    children = tuple(part for part in rest if isinstance(part, Phrase))
    if children and len(children) == len(rest):
        return Phrase(int(label), children, inner=max(max(child.strength, child.inner) for child in children))
    if len(rest) == 1 and isinstance(rest[0], str):
        word = _ESCAPES.get(rest[0], rest[0]).replace("\\/", "/").replace("\\*", "*")
        return Phrase(int(label), word=word)
    raise ExpoundError(f"{where}: expected either one word or phrases inside each bracket, got {len(rest)} parts")
