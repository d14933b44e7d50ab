"""MLQE-PE: how good is this machine translation? Scores by people, and words that post-editors changed."""

from __future__ import annotations

import math
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import NUMBER, Reader, Row, Table, decode, field, files, lines, need_text, text_features
from exegete.data.spans import locate, marked
from exegete.errors import ExegeteError

Edits = Mapping[tuple[str, str], "Edit"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A post-edited pair: tokenised source and translation, and for each of their words whether it is BAD."""

    source: list[str]
    translation: list[str]
    source_bad: list[bool]
    translation_bad: list[bool]


@dataclass(frozen=True, kw_only=True)
class Mlqe(Reader):
    """Source, translation, and the mean of the raters' z-standardised direct assessments.

    The words tagged BAD are the rationales of both sides, where the archive of post-edits holds the same two texts up
    to white space; elsewhere (in train, and for pairs that differ between the archives) they are null.
    """

    card: ClassVar[DataCard] = DataCard(
        name="mlqe",
        what="quality of machine translations, a regression on sentence pairs; word tags as rationales on dev",
        form="mlqe:FOLDER?pair=LANGUAGES with the archives PAIR-SPLIT.tar.gz and PAIR-postediting-SPLIT.tar.gz",
        source="Fomicheva et al. 2020", licence="CC0 1.0", example="mlqe:corpora/mlqe-pe?pair=ro-en",
    )  # fmt: skip
    pair: str = "en-de"

    def splits(self) -> tuple[str, ...]:
        """The archives that are there for this language pair."""
        return tuple(self._files())

    def table(self, split: str) -> Table:
        """The translations of a split, one row each."""
        return Table(text_features(NUMBER, pair=True), self._rows(split))

    def _files(self) -> dict[str, Path]:
        return files(self.path, **{split: f"{self.pair}-{split}.tar.gz" for split in ("train", "dev", "test")})

    def _rows(self, split: str) -> Iterator[Row]:
        archive = self._files()[split]
        post_edits = Path(self.path) / f"{self.pair}-postediting-{split}.tar.gz"
        edits = _edits(post_edits) if post_edits.is_file() else {}
        where, text = _only(_members(archive, ".tsv"), archive)
        rows = ((place, line.split("\t")) for place, line in lines(text, where))
        _, head = next(rows)
        for place, cells in rows:
            if len(cells) != len(head):
                raise ExegeteError(f"{place}: expected {len(head)} cells between tabs, got {len(cells)}")
            yield _row(dict(zip(head, cells, strict=True)), edits, place)


def _row(cells: Mapping[str, str], edits: Edits, where: str) -> Row:
    row = dict(cells)
    source = need_text(field(row, "original", where), "original", where)
    translation = need_text(field(row, "translation", where), "translation", where)
    edit = edits.get((_letters(source), _letters(translation)))
    mean = field(row, "z_mean", where)
    try:
        label = float(mean)
    except ValueError:
        label = math.nan
    if not math.isfinite(label):
        raise ExegeteError(f"{where}: expected a number in 'z_mean', got {mean!r}")
    return {
        "text": source,
        "text_pair": translation,
        "label": label,
        "rationale": edit and _spans(edit.source, edit.source_bad, source),
        "rationale_pair": edit and _spans(edit.translation, edit.translation_bad, translation),
    }


def _spans(words: list[str], bad: list[bool], text: str) -> list[list[int]] | None:
    spans = locate(words, text)
    return None if spans is None else marked(spans, bad)


def _edits(archive: Path) -> Edits:
    """The post-edited pairs by the letters of both texts. Of the tags, the ones between belong to gaps."""
    columns = [
        [line.split() for _, line in lines(text, where)]
        for where, text in (
            _only(_members(archive, f".{name}"), archive) for name in ("src", "mt", "source_tags", "tags")
        )
    ]
    if len({len(column) for column in columns}) != 1:
        raise ExegeteError(f"{archive}: expected as many lines in src, mt, source_tags and tags")
    edits = {}
    for number, (source, translation, source_tags, tags) in enumerate(zip(*columns, strict=True), start=1):
        if len(source_tags) != len(source) or len(tags) != 2 * len(translation) + 1:
            raise ExegeteError(f"{archive}, line {number}: expected a tag for each word, and for each gap of the mt")
        bad = [tag == "BAD" for tag in source_tags], [tag == "BAD" for tag in tags[1::2]]
        edits["".join(source), "".join(translation)] = Edit(source, translation, *bad)
    return edits


def _members(archive: Path, suffix: str) -> dict[str, str]:
    """The text members whose names end so, read without unpacking."""
    try:
        with tarfile.open(archive) as tar:
            named = [member for member in tar.getmembers() if member.isfile() and member.name.endswith(suffix)]
            opened = [(member.name, tar.extractfile(member)) for member in named]
            return {f"{archive}:{name}": decode(file.read(), f"{archive}:{name}") for name, file in opened if file}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ExegeteError(f"{archive} cannot be read as a tar archive: {error}") from None


def _only(members: dict[str, str], archive: Path) -> tuple[str, str]:
    if len(members) != 1:
        raise ExegeteError(f"{archive}: expected one member of each kind, got {sorted(members) or 'none'}")
    return next(iter(members.items()))


def _letters(text: str) -> str:
    return "".join(text.split())
