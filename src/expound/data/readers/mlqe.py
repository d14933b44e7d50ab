"""MLQE-PE: machine translations with quality scores by people, and the words that post-editors changed."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    NUMBER,
    Row,
    decode_utf8,
    get_field,
    make_row,
    parse_tsv,
    require_number,
    require_text,
    split_lines,
)
from expound.data.readers.layouts import FilePerSplit, find_split_files
from expound.data.spans import locate_words, merge_marked_words
from expound.errors import ExpoundError

Edits = Mapping[tuple[str, str], "Edit"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A post-edited pair: the words of source and translation, and whether each is tagged BAD."""

    source: list[str]
    translation: list[str]
    source_bad: list[bool]
    translation_bad: list[bool]


@dataclass(frozen=True, kw_only=True)
class Mlqe(FilePerSplit):
    """Reads source, translation, and the mean of the raters' z-standardized direct assessments.

    The words tagged BAD are the rationales of both texts if the archive of post-edits has the same pair up to white
    space. Otherwise (in train, and for pairs that differ between the archives) rationales are null.

    Args:
        pair: the language pair, or several between commas, which are read one after the other.
    """

    card: ClassVar[DataCard] = DataCard(
        name="mlqe",
        what="quality of machine translations, a regression on sentence pairs; word tags as rationales on dev",
        form="mlqe:FOLDER?pair=PAIR,... with the archives PAIR-SPLIT.tar.gz and PAIR-postediting-SPLIT.tar.gz",
        source="Fomicheva et al. 2020", license="CC0 1.0", example="mlqe:corpora/mlqe-pe?pair=ro-en",
    )  # fmt: skip
    labels: ClassVar = NUMBER
    pairs: ClassVar = True
    pair: str = "en-de"

    def find_files(self) -> dict[str, Path]:
        """Return the archives of the first language pair by split."""
        first = self.pair.partition(",")[0]
        names = {split: [f"{first}-{split}.tar.gz"] for split in ("train", "dev", "test")}
        return find_split_files(self.path, names)

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the translations of an archive, then the same split of the other pairs named in `pair`."""
        pairs = self.pair.split(",")
        for pair in pairs:
            archive = path.with_name(path.name.replace(pairs[0], pair, 1))
            post_edits = path.with_name(path.name.replace(pairs[0], f"{pair}-postediting", 1))
            edits: Edits = {}
            if post_edits.is_file():
                edits = _read_edits(post_edits)
            where, text = _require_one(_read_members(archive, ".tsv"), archive)
            for place, cells in parse_tsv(text, where):
                yield _make_row(cells, edits, place)


def _make_row(row: Row, edits: Edits, where: str) -> Row:
    source = require_text(get_field(row, "original", where), "original", where)
    translation = require_text(get_field(row, "translation", where), "translation", where)
    # compared without white space, because post-edited pairs are tokenized and rated pairs are not
    edit = edits.get((_remove_white_space(source), _remove_white_space(translation)))
    rationale = rationale_pair = None
    if edit is not None:
        rationale = _locate_bad_words(edit.source, edit.source_bad, source)
        rationale_pair = _locate_bad_words(edit.translation, edit.translation_bad, translation)
    label = require_number(get_field(row, "z_mean", where), "z_mean", where)
    return make_row((source, rationale), (translation, rationale_pair)) | {"label": label}


def _locate_bad_words(words: list[str], bad: list[bool], text: str) -> list[list[int]] | None:
    spans = locate_words(words, text)
    return None if spans is None else merge_marked_words(spans, bad)


def _read_edits(archive: Path) -> Edits:
    """Return the post-edited pairs by both texts without white space."""
    columns = []
    for name in ("src", "mt", "source_tags", "tags"):
        where, text = _require_one(_read_members(archive, f".{name}"), archive)
        columns.append([line.split() for _, line in split_lines(text, where)])
    if len(set(map(len, columns))) != 1:
        raise ExpoundError(f"{archive}: expected as many lines in src, mt, source_tags and tags")
    edits = {}
    for number, (source, translation, source_tags, tags) in enumerate(zip(*columns, strict=True), start=1):
        where = f"{archive}, line {number}"
        bad = parse_bad_words(source_tags, len(source), where), parse_bad_words(tags, len(translation), where)
        edits["".join(source), "".join(translation)] = Edit(source, translation, *bad)
    return edits


def parse_bad_words(tags: list[str], count: int, where: str) -> list[bool]:
    """Return for each of `count` words whether it is tagged BAD.

    Tags are for the words, for the words and the gaps around them, or for the words and the sentence's end.

    Raises:
        ExpoundError: any other number of tags.
    """
    if len(tags) not in (count, count + 1, 2 * count + 1):
        raise ExpoundError(f"{where}: expected a tag for each word of {count}, or each gap too, got {len(tags)}")
    word_tags = tags[1::2] if len(tags) == 2 * count + 1 else tags[:count]
    return [tag == "BAD" for tag in word_tags]


def _read_members(archive: Path, suffix: str) -> dict[str, str]:
    """Return the texts of an archive's members with this suffix, by name, without unpacking the archive to disk."""
    texts = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                if member.isfile() and member.name.endswith(suffix) and (file := tar.extractfile(member)):
                    where = f"{archive}:{member.name}"
                    texts[where] = decode_utf8(file.read(), where)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ExpoundError(f"{archive} cannot be read as a tar archive: {error}") from None
    return texts


def _require_one(members: dict[str, str], archive: Path) -> tuple[str, str]:
    if len(members) != 1:
        raise ExpoundError(f"{archive}: expected one member of each kind, got {sorted(members) or 'none'}")
    return next(iter(members.items()))


def _remove_white_space(text: str) -> str:
    return "".join(text.split())
