"""The shipped contract holds for every native reader, and catches what breaks it."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exegete.data.cards import DataCard
from exegete.data.readers import READERS, Reader, Table
from exegete.data.readers.base import text_features
from exegete.testing import ReaderContract

ROWS = [{"text": f"a small town {n}", "label": "good" if n % 2 else "bad", "rationale": [[2, 7]]} for n in range(30)]
PARTS = ("train", "dev", "test")


def json_lines(rows):
    return "\n".join(json.dumps(row) for row in rows)


def packed(path, **members):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))


def sst(folder):
    for part in PARTS:
        (folder / f"{part}.txt").write_text("(4 (2 a) (4 (3 fine) (2 film)))\n(0 (2 a) (0 bore))\n")


def eraser(folder):
    (folder / "docs").mkdir()
    (folder / "docs" / "one").write_text("a dull film\nwith a lid")
    evidence = [[{"start_token": 1, "end_token": 3}]]
    row = {"annotation_id": "one", "classification": "NEG", "evidences": evidence}
    for part in ("train", "val", "test"):
        (folder / f"{part}.jsonl").write_text(json_lines([row]))


def snli(folder):
    for part in PARTS:
        row = {"premise": "two women hug", "hypothesis": "they sleep", "label": "contradiction"}
        (folder / f"{part}.jsonl").write_text(json_lines([row]))


def squad(file):
    asked = {"id": "1", "question": "which film?", "answers": [{"text": "town", "answer_start": 8}]}
    paragraphs = [{"context": f"a small town {n}", "qas": [asked]} for n in range(30)]
    file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def mlqe(folder):
    for part in PARTS:
        head = "index\toriginal\ttranslation\tscores\tmean\tz_scores\tz_mean\tmodel_scores"
        row = "0\ta lid\tein Deckel\t[1]\t1\t[1]\t-0.5\t0"
        packed(folder / f"en-de-{part}.tar.gz", **{f"{part}.df.short.tsv": f"{head}\n{row}\n"})


def csv(file):
    rows = [f'{row["text"]},{row["label"]},"[[2, 7]]"' for row in ROWS]
    file.write_text("\n".join(["text,label,rationale", *rows]))


SAMPLES = {
    "sst": sst,
    "eraser": eraser,
    "snli": snli,
    "squad": squad,
    "mlqe": mlqe,
    "csv": csv,
    "jsonl": lambda file: file.write_text(json_lines(ROWS)),
    "parquet": lambda file: pq.write_table(pa.Table.from_pylist(ROWS), file),
    "labelled": lambda file: file.write_text("\n".join(f"{row['label']} {row['text']}" for row in ROWS)),
}
FOLDERS = (sst, eraser, snli, mlqe)


@pytest.mark.parametrize("name", [name for name, kind in READERS.items() if name in SAMPLES or not kind.needs_path])
class TestNativeReaders(ReaderContract):
    @pytest.fixture
    def reader(self, name, tmp_path):
        if name not in SAMPLES:
            return READERS[name]()
        write = SAMPLES[name]
        path = tmp_path if write in FOLDERS else tmp_path / "data"
        write(path)
        return READERS[name](path=str(path))


class TestExchanges(ReaderContract):
    @pytest.fixture
    def reader(self, tmp_path):
        row = {"prompt": "Where is the lid?", "sources": [{"name": "a", "text": "in town"}], "response": "In town."}
        (tmp_path / "asked.jsonl").write_text(json_lines(row | {"prompt": f"Where is lid {n}?"} for n in range(30)))
        return READERS["jsonl"](path=str(tmp_path / "asked.jsonl"))


@pytest.mark.parametrize("name", READERS)
def test_facts_of_every_reader(name):
    reader = READERS[name](path="somewhere" if READERS[name].needs_path else "")
    contract = ReaderContract()
    contract.test_its_facts_are_told(reader)
    contract.test_its_spec_gives_it_again(reader)


@dataclass(frozen=True, kw_only=True)
class Careless(Reader):
    """Spans beside the text, another row each time, and no word of files that are not there."""

    card: ClassVar = DataCard(name="careless", what="w", form="careless", source="s", licence="l", example="careless")
    seen: ClassVar = []

    def splits(self):
        return ("train", "all")

    def table(self, split):
        self.seen.append(split)
        return Table(text_features(["x"]), [{"text": f"{len(self.seen)}", "label": 0, "rationale": [[0, 9]]}])


@pytest.mark.parametrize(
    ("test", "error"),
    [
        ("test_rows_are_canonical", AssertionError),
        ("test_reading_again_gives_the_same", AssertionError),
        ("test_files_that_are_not_there_are_an_error", pytest.fail.Exception),
    ],
)
def test_a_careless_reader_is_caught(test, error):
    with pytest.raises(error):
        getattr(ReaderContract(), test)(Careless(path="nowhere"))
