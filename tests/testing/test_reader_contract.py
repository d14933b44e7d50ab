"""The shipped contract holds for every native reader, and catches what breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from corpora import CORPORA, lines
from expound.data.cards import DataCard
from expound.data.readers import READERS, Reader, Table
from expound.data.readers.base import make_text_features
from expound.testing import ReaderContract


@pytest.mark.parametrize("name", sorted(set(READERS) - {"hub"}))
class TestNativeReaders(ReaderContract):
    @pytest.fixture
    def reader(self, name, tmp_path):
        if not READERS[name].needs_path:
            return READERS[name]()
        (tmp_path / "corpus").mkdir()
        return READERS[name](path=str(CORPORA[name](tmp_path / "corpus")))


class TestHub(ReaderContract):
    n_damaged_versions = 8

    @pytest.fixture
    def reader(self, tmp_path, monkeypatch):
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
        (tmp_path / "corpus").mkdir()
        return READERS["hub"](path=str(CORPORA["hub"](tmp_path / "corpus")))


class TestExchanges(ReaderContract):
    @pytest.fixture
    def reader(self, tmp_path):
        row = {"prompt": "Where is the lid?", "sources": [{"name": "a", "text": "in town"}], "response": "In town."}
        asked = lines(tmp_path / "asked.jsonl", [row | {"prompt": f"Where is lid {n}?"} for n in range(30)])
        return READERS["jsonl"](path=str(asked))


def test_facts_of_every_reader():
    for name in READERS:
        reader = READERS[name](path="somewhere" if READERS[name].needs_path else "")
        contract = ReaderContract()
        contract.test_the_card_is_complete(reader)
        contract.test_the_spec_opens_an_equal_reader(reader)


@dataclass(frozen=True, kw_only=True)
class Careless(Reader):
    """A reader with spans outside the text, another row each time, and no error for missing files."""

    card: ClassVar = DataCard(name="careless", what="w", form="careless", source="s", license="l", example="careless")
    seen: ClassVar = []

    def splits(self):
        return ("train", "all")

    def table(self, split):
        self.seen.append(split)
        return Table(make_text_features(["x"]), [{"text": f"{len(self.seen)}", "label": 0, "rationale": [[0, 9]]}])


@pytest.mark.parametrize(
    ("test", "error"),
    [
        ("test_rows_are_canonical", AssertionError),
        ("test_reading_again_gives_the_same", AssertionError),
        ("test_missing_files_are_an_error", pytest.fail.Exception),
    ],
)
def test_a_careless_reader_is_caught(test, error):
    with pytest.raises(error):
        getattr(ReaderContract(), test)(Careless(path="nowhere"))
