"""Contract tests for readers; inherit the class and define one fixture, `reader`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from datasets import ClassLabel, Dataset

from expound.data.load import format_spec, open_reader
from expound.data.readers import READERS, Reader
from expound.data.readers.exchanges import EXCHANGE
from expound.errors import ExpoundError
from expound.testing.damage import make_damaged_versions

TEXTS = {"rationale": "text", "rationale_pair": "text_pair", "answer": "text_pair"}
"""Columns of spans, and the column of the text that they are spans of."""
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
    """The number of damaged versions of the reader's files in all; each file has at least four."""

    def test_the_card_is_complete(self, reader: Reader) -> None:
        """The id is an identifier, form and example start with it, and description, source and license are given."""
        card = reader.card
        assert card.name.isidentifier()
        assert card.form.startswith(card.name)
        assert card.example.startswith(card.name)
        assert all((card.what, card.source, card.license))

    def test_the_spec_opens_an_equal_reader(self, reader: Reader) -> None:
        """The spec that studies and records store opens an equal reader, once the reader is registered."""
        if reader.card.name in READERS:
            assert open_reader(format_spec(reader)) == reader

    def test_rows_are_canonical(self, reader: Reader) -> None:
        """Rows have known columns only, non-empty texts, spans inside them, and known labels."""
        assert reader.splits()
        for split in reader.splits():
            features, rows = reader.table(split)
            assert split in SPLITS
            assert set(features) <= COLUMNS
            assert {"text", "image", "prompt", "messages"} & set(features)
            table = list(rows)
            for row in table:
                assert set(row) == set(features)
                check_canonical_row(row, features)
            assert len(Dataset.from_list(table, features=features)) == len(table)

    def test_reading_again_gives_the_same(self, reader: Reader) -> None:
        """A second reader with the same files, options and seed gives the same rows."""
        for split in reader.splits():
            assert list(reader.table(split).rows) == list(replace(reader).table(split).rows)

    def test_each_row_is_in_one_split(self, reader: Reader) -> None:
        """If one file is divided into splits, their sizes add up to the size of the split `all`."""
        if "all" in reader.splits():
            sizes = {split: len(list(reader.table(split).rows)) for split in reader.splits()}
            assert sizes.pop("all") == sum(sizes.values()) > 0

    def test_missing_files_are_an_error(self, reader: Reader) -> None:
        """A path that does not exist raises ExpoundError."""
        if reader.needs_path:
            elsewhere = replace(reader, path=f"{reader.path}-that-is-not-there")
            with pytest.raises(ExpoundError):
                [list(elsewhere.table(split).rows) for split in elsewhere.splits()]

    def test_damaged_files_are_read_or_reported(self, reader: Reader) -> None:
        """A file with damaged content is read, or raises an ExpoundError that names it."""
        if not reader.needs_path:
            return
        base = Path(reader.path)
        files = [base]
        if base.is_dir():
            files = sorted(path for path in base.rglob("*") if path.is_file())
        for path in files:
            content = path.read_bytes()
            try:
                for damaged in make_damaged_versions(content, max(4, self.n_damaged_versions // len(files))):
                    path.write_bytes(damaged)
                    check_damage_is_reported(reader, path)
            finally:
                path.write_bytes(content)


def check_damage_is_reported(reader: Reader, path: Path) -> None:
    """Read the reader's files; an error must be an ExpoundError that names the file or the reader's path."""
    message = None
    try:
        for split in reader.splits():
            features, rows = reader.table(split)
            for row in rows:
                check_canonical_row(row, features)
    except ExpoundError as error:
        message = str(error)
    assert message is None or reader.path in message or path.name in message


def check_canonical_row(row: Mapping[str, Any], features: Mapping[str, Any]) -> None:
    """Assert that a row has non-empty texts, spans inside their texts, and a label of the column's type."""
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
