"""HateXplain: posts that people called hate speech, offensive or normal, with the words that made them say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from exegete.data.cards import DataCard
from exegete.data.marked import MAJORITY
from exegete.data.readers.base import (
    Reader,
    Row,
    Table,
    field,
    folder,
    from_json,
    listed,
    need_label,
    need_text,
    read,
    text_features,
)
from exegete.data.spans import joined, voted
from exegete.data.splits import canonical
from exegete.errors import ExegeteError

LABELS = ("hatespeech", "normal", "offensive")


@dataclass(frozen=True, kw_only=True)
class Hatexplain(Reader):
    """The tokens of a post with single spaces between them, and the label of most of its annotators.

    Posts on which no two annotators agree are left out. `share`: a token is evidence when at least this share of those
    who marked the post marked it; nobody was asked about normal posts, so that their rationale is null.
    """

    card: ClassVar[DataCard] = DataCard(
        name="hatexplain", what="posts of social media: hate speech, offensive or normal, with marked words",
        form="hatexplain:FOLDER with dataset.json and post_id_divisions.json; ?share=0.5 of those who must agree",
        source="Mathew et al. 2021", licence="MIT", example="hatexplain:corpora/HateXplain/Data",
    )  # fmt: skip
    share: float = MAJORITY

    def splits(self) -> tuple[str, ...]:
        """Those of the divisions; val is dev."""
        return tuple(self._divisions())

    def table(self, split: str) -> Table:
        """The posts of a split, one row each."""
        return Table(text_features(LABELS), self._rows(self._divisions()[split]))

    def _divisions(self) -> dict[str, list[Any]]:
        path = folder(self.path) / "post_id_divisions.json"
        divisions = from_json(read(path), str(path))
        if not isinstance(divisions, dict) or not divisions:
            raise ExegeteError(f"{path}: expected an object with lists of posts as train, val and test")
        return {canonical(name): listed(divisions, name, str(path)) for name in divisions}

    def _rows(self, names: list[Any]) -> Iterator[Row]:
        path = Path(self.path) / "dataset.json"
        posts = from_json(read(path), str(path))
        for name in map(str, names):
            where = f"{path}, post {name}"
            post = field(posts, name, str(path))
            given = [field(person, "label", where) for person in listed(post, "annotators", where)]
            label, votes = Counter(map(str, given)).most_common(1)[0] if given else ("", 0)
            if votes > 1:
                yield self._post(post, where) | {"label": need_label(label, LABELS, where)}

    def _post(self, post: Row, where: str) -> Row:
        tokens = [need_text(token, "post_tokens", where) for token in listed(post, "post_tokens", where)]
        text, spans = joined(tokens)
        people = listed(post, "rationales", where)
        if not all(isinstance(marks, list) and len(marks) == len(tokens) for marks in people):
            raise ExegeteError(f"{where}: expected lists of {len(tokens)} marks, one for each token, in 'rationales'")
        marks = [[mark == 1 for mark in person] for person in people]
        return {"text": need_text(text, "post_tokens", where), "rationale": voted(spans, marks, self.share)}
