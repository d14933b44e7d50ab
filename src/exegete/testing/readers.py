"""Contract tests for every reader; inherit the class and give it one fixture, `reader`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from datasets import ClassLabel, Dataset

from exegete.data.load import format_spec, open_reader
from exegete.data.readers import READERS, Reader
from exegete.data.readers.exchanges import EXCHANGE
from exegete.errors import ExegeteError
from exegete.testing.damage import make_damaged_versions

TEXTS = {"rationale": "text", "rationale_pair": "text_pair", "answer": "text_pair"}
"""Columns of spans, and the text that they are spans of."""
COLUMNS = {"text", "text_pair", "image", "label", "span", *TEXTS, *EXCHANGE}
SPLITS = {"train", "dev", "test", "all", "validation", "val", "valid"}


class ReaderContract:
    """Contract tests of a dataset format.

    Example:
        class TestMyReader(ReaderContract):
            @pytest.fixture
            def reader(self, tmp_path):
                (tmp_path / "data.txt").write_text("...")  # a few rows for each split
                return MyReader(path=str(tmp_path / "data.txt"))
    """

    n_damaged_versions: ClassVar[int] = 60
    """How many damaged versions of its files a reader meets, shared out among them; at least four of each."""

    def test_its_facts_are_told(self, reader: Reader) -> None:
        """Name, form, example, source and licence are there for lists and help texts."""
        card = reader.card
        assert card.name.isidentifier()
        assert card.form.startswith(card.name)
        assert card.example.startswith(card.name)
        assert all((card.what, card.source, card.licence))

    def test_its_spec_gives_it_again(self, reader: Reader) -> None:
        """The text that a study or a record keeps of it; once it is registered."""
        if reader.card.name in READERS:
            assert open_reader(format_spec(reader)) == reader

    def test_rows_are_canonical(self, reader: Reader) -> None:
        """Columns of docs/architecture.md and no others, texts that say something, spans inside them, known labels."""
        assert reader.splits()
        for split in reader.splits():
            features, rows = reader.table(split)
            assert split in SPLITS
            assert set(features) <= COLUMNS
            assert {"text", "image", "prompt", "messages"} & set(features)
            kept = list(rows)
            for row in kept:
                assert set(row) == set(features)
                check_canonical_row(row, features)
            assert len(Dataset.from_list(kept, features=features)) == len(kept)

    def test_reading_again_gives_the_same(self, reader: Reader) -> None:
        """The rows depend on the files, the options and the seed alone."""
        for split in reader.splits():
            assert list(reader.table(split).rows) == list(replace(reader).table(split).rows)

    def test_all_is_its_parts(self, reader: Reader) -> None:
        """Where one file is divided, each row is in one part."""
        if "all" in reader.splits():
            sizes = {split: len(list(reader.table(split).rows)) for split in reader.splits()}
            assert sizes.pop("all") == sum(sizes.values()) > 0

    def test_files_that_are_not_there_are_an_error(self, reader: Reader) -> None:
        """An ExegeteError, which the command line says in one line."""
        if reader.needs_path:
            elsewhere = replace(reader, path=f"{reader.path}-that-is-not-there")
            with pytest.raises(ExegeteError):
                [list(elsewhere.table(split).rows) for split in elsewhere.splits()]

    def test_damage_is_told(self, reader: Reader) -> None:
        """A file that is cut off, or holds something else in a place, is read or is an ExegeteError that names it."""
        if not reader.needs_path:
            return
        base = Path(reader.path)
        files = sorted(path for path in base.rglob("*") if path.is_file()) if base.is_dir() else [base]
        for path in files:
            content = path.read_bytes()
            try:
                for damaged in make_damaged_versions(content, max(4, self.n_damaged_versions // len(files))):
                    path.write_bytes(damaged)
                    check_damage_is_reported(reader, path)
            finally:
                path.write_bytes(content)


def check_damage_is_reported(reader: Reader, path: Path) -> None:
    """Fails for an error of another kind than ExegeteError, or one that does not name the file or the reader's path."""
    told = None
    try:
        for split in reader.splits():
            features, rows = reader.table(split)
            for row in rows:
                check_canonical_row(row, features)
    except ExegeteError as error:
        told = str(error)
    assert told is None or reader.path in told or path.name in told


def check_canonical_row(row: Mapping[str, Any], features: Mapping[str, Any]) -> None:
    """Fails for a row that is not in canonical form."""
    for name in {"text", "text_pair"} & set(row):
        assert isinstance(row[name], str)
        assert row[name].strip()
    for name in TEXTS.keys() & set(row):
        spans, text = row[name], row[TEXTS[name]]
        assert spans is None or all(0 <= start < end <= len(text) for start, end in spans)
    if "span" in row:
        assert 0 <= row["span"][0] < row["span"][1] <= len(row["text"])
    if isinstance(features.get("label"), ClassLabel):
        assert 0 <= row["label"] < features["label"].num_classes
    elif "label" in features:
        assert isinstance(row["label"], float)
