"""HateXplain: posts labeled as hate speech, offensive or normal, with the words that annotators marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    Reader,
    Row,
    Table,
    get_field,
    get_list,
    make_text_features,
    parse_json,
    read_text,
    require_folder,
    require_label,
    require_text,
)
from expound.data.readers.marked import MAJORITY
from expound.data.spans import join_words, vote_on_words
from expound.data.splits import normalize_split_name
from expound.errors import ExpoundError

LABELS = ("hatespeech", "normal", "offensive")


@dataclass(frozen=True, kw_only=True)
class Hatexplain(Reader):
    """Reads the tokens of posts, joined by single spaces, with the label of most annotators.

    Posts on which no two annotators agree are left out. Normal posts were not annotated, so their rationale is null.

    Args:
        share: a token is evidence if at least this share of the post's annotators marked it.
    """

    card: ClassVar[DataCard] = DataCard(
        name="hatexplain", what="posts of social media: hate speech, offensive or normal, with marked words",
        form="hatexplain:FOLDER with dataset.json and post_id_divisions.json; ?share=0.5 of those who must agree",
        source="Mathew et al. 2021", license="MIT", example="hatexplain:corpora/HateXplain/Data",
    )  # fmt: skip
    share: float = MAJORITY

    def splits(self) -> tuple[str, ...]:
        """Return the splits of post_id_divisions.json; val is called dev."""
        return tuple(self._read_divisions())

    def table(self, split: str) -> Table:
        """Return the posts of a split."""
        return Table(make_text_features(LABELS), self._read_rows(self._read_divisions()[split]))

    def _read_divisions(self) -> dict[str, list[Any]]:
        path = require_folder(self.path) / "post_id_divisions.json"
        divisions = parse_json(read_text(path), str(path))
        if not isinstance(divisions, dict) or not divisions:
            raise ExpoundError(f"{path}: expected an object with lists of posts as train, val and test")
        return {normalize_split_name(name): get_list(divisions, name, str(path)) for name in divisions}

    def _read_rows(self, names: list[Any]) -> Iterator[Row]:
        path = Path(self.path) / "dataset.json"
        posts = parse_json(read_text(path), str(path))
        for name in map(str, names):
            where = f"{path}, post {name}"
            post = get_field(posts, name, str(path))
            people = get_list(post, "annotators", where)
            labels = [str(get_field(person, "label", where)) for person in people]
            label, votes = Counter(labels).most_common(1)[0] if labels else ("", 0)
            # each post has three annotators, so one vote means that all of them differ
            if votes > 1:
                yield self._make_row(post, where) | {"label": require_label(label, LABELS, where)}

    def _make_row(self, post: Row, where: str) -> Row:
        tokens = [require_text(token, "post_tokens", where) for token in get_list(post, "post_tokens", where)]
        text, spans = join_words(tokens)
        marks = []
        for person in get_list(post, "rationales", where):
            if not isinstance(person, list) or len(person) != len(tokens):
                expected = f"lists of {len(tokens)} marks, one for each token"
                raise ExpoundError(f"{where}: expected {expected}, in 'rationales'")
            marks.append([mark == 1 for mark in person])
        return {"text": require_text(text, "post_tokens", where), "rationale": vote_on_words(spans, marks, self.share)}
