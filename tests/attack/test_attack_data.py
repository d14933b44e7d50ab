"""Strange texts come back from every reader as they were; damaged files are read as canonical rows or refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import resource
import tempfile
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

import expound
from attacked import LONG, cases, record_outcomes
from corpora import CORPORA
from expound import ExpoundError
from expound.data.readers import READERS
from expound.reports.table import format_csv
from expound.testing.readers import COLUMNS, check_canonical_row
from forks import forge
from samples import READER, SAMPLES, TEXTS, write_dataset
from strange import TEXTS as STRANGE
from strange import VALUES, edit_bytes, find_paths, replace_value

FEW = TEXTS[:4]
EACH = 5
"""Damaged files of one draw."""


def one_line(text):
    """The text as a format keeps it that separates texts by tabs or line ends."""
    return " ".join(text.replace("\t", " ").replace("\r", " ").split("\n")).strip()


KEPT = {
    "sst": lambda text: " ".join(text.replace("(", "").replace(")", "").split()),
    "eraser": lambda text: text.lstrip("\ufeff"),
    "labeled": one_line,
    "mlqe": lambda text: one_line(text.lstrip("\ufeff")),
}
"""The part of a text that a format can hold; other formats hold all of it."""


def require_short(message):
    assert 0 < len(message) <= 300
    assert len(message.splitlines()) == 1


def load(name, path, split):
    """The rows, which must be canonical, or None if they are refused in one short line."""
    try:
        data = expound.load_data(f"{READER.get(name, name)}:{path}", split)
    except ExpoundError as error:
        require_short(str(error))
        return None
    assert set(data.features) <= COLUMNS
    features = data.features
    for row in data:
        check_canonical_row(row, features)
    return data


def test_strange_texts_come_back_as_they_were(tmp_path):
    """Six texts at a time, through every format that is written for tests."""
    with record_outcomes("strange texts through readers", ", ".join(SAMPLES)) as counts:

        @cases(600)
        @given(st.lists(STRANGE, min_size=6, max_size=6))
        def attack(drawn):
            for name in SAMPLES:
                texts = [KEPT.get(name, str)(text) for text in drawn]
                texts = [text for text in texts if text.strip()]
                counts["cases"] += len(texts)
                if texts:
                    require_same(name, texts, tmp_path)

        attack()


def require_same(name, texts, folder):
    path = write_dataset(tempfile.mkdtemp(dir=folder), SAMPLES[name](texts))
    data = load(name, path, "train" if path.is_dir() else "all")
    column = {"squad": "text_pair", "exchanges": "prompt"}.get(name, "text")
    assert data is not None
    assert list(data[column]) == texts


@pytest.mark.parametrize("name", [name for name in SAMPLES if KEPT.get(name, str)(" ") == " "])
def test_an_empty_text_is_refused(name, tmp_path):
    assert load(name, write_dataset(tmp_path, SAMPLES[name]([" \n "])), None) is None


def parse_json(content):
    """The JSON value of a file and a function that writes it; None for files that are not JSON."""
    try:
        return json.loads(content), lambda value: json.dumps(value).encode()
    except ValueError:
        pass
    try:
        return (
            [json.loads(line) for line in content.splitlines()],
            lambda rows: (
                "\n".join(map(json.dumps, rows)).encode() if isinstance(rows, list) else json.dumps(rows).encode()
            ),
        )
    except ValueError:
        return None


def variants(content):
    """Functions (random source, JSON value) → bytes of a damaged file, also damaged inside an archive or JSON."""
    kinds = [lambda chance, _: edit_bytes(content, chance)] * 2
    if content.startswith(b"\x1f\x8b"):
        inside = gzip.decompress(content)
        kinds[1:] = [lambda chance, _: gzip.compress(edit_bytes(inside, chance), 1)]
    if found := parse_json(content):
        value, text = found
        inner = find_paths(value)
        kinds += [lambda chance, new: text(replace_value(value, chance.choice(inner), new))] * 2
    return kinds


def corpus(name, folder):
    """A dataset's path, the bytes of its files, the names of the files to attack, and the split that reads them."""
    if name in SAMPLES:
        files = SAMPLES[name](FEW)
        path = write_dataset(folder, files)
        chosen = sorted(files, key=lambda file: (not file.startswith(("train", "en-de-post", "en-de-train")), file))[:2]
        return path, files, chosen, "train" if path.is_dir() else "all"
    path = Path(CORPORA[name](folder))
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return path, files, sorted(files), None


@pytest.mark.parametrize("name", [*SAMPLES, *(name for name in CORPORA if name not in (*SAMPLES, "hub"))])
def test_damaged_files_are_read_as_rows_or_refused(name, tmp_path):
    path, files, chosen, split = corpus(name, tmp_path)
    kinds = {file: variants(files[file]) for file in chosen}
    with record_outcomes("damaged files through readers", name) as counts:

        @cases(1500 // EACH)
        @given(st.randoms(use_true_random=True), VALUES)
        def attack(chance, value):
            for _ in range(EACH):
                file = chance.choice(chosen)
                (tmp_path / file).write_bytes(chance.choice(kinds[file])(chance, value))
                data = load(name, path, split)
                counts["refused" if data is None else "read"] += 1
                counts["cases"] += 1
                (tmp_path / file).write_bytes(files[file])

        attack()


TYPED = {
    pa.string(): ["a film", " "], pa.large_string(): ["a", ""], pa.binary(): [b"a", b"\xff"], pa.int8(): [0, -3],
    pa.uint64(): [0, 2**64 - 1], pa.float16(): [np.float16(0.5), np.float16("nan")], pa.float64(): [1e308, np.inf],
    pa.bool_(): [True, False], pa.date32(): [0, 1], pa.timestamp("ns"): [0, 1], pa.duration("s"): [0, 1],
    pa.decimal128(5, 2): [Decimal("1.5"), Decimal(0)], pa.list_(pa.int64()): [[0, 1], []],
    pa.list_(pa.list_(pa.int32())): [[[0, 1]], [[1]]], pa.list_(pa.string()): [["a"], [None]],
    pa.struct([("name", pa.string())]): [{"name": "a"}, {"name": None}], pa.null(): [None, None],
    pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])): [[{"role": "user", "content": "a"}], []],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
}  # fmt: skip


def test_parquet_of_other_types_is_read_as_rows_or_refused(tmp_path):
    names = ["text", "label", "rationale", "text_pair", "prompt", "sources", "answer", "messages"]
    columns = st.dictionaries(st.sampled_from(names), st.sampled_from(list(TYPED)), min_size=1, max_size=4)
    with record_outcomes("damaged files through readers", "parquet of other types") as counts:

        @cases(1000)
        @given(columns, st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=3))
        def attack(types, rows):
            made = {
                name: pa.array([None if row is None else TYPED[kind][row] for row in rows], kind)
                for name, kind in types.items()
            }
            pq.write_table(pa.table(made), tmp_path / "data")
            counts["refused" if load("parquet", tmp_path / "data", "all") is None else "read"] += 1
            counts["cases"] += 1

        attack()


REPEATED, ONCE = "a film " * 140_000, "a film " * 1400
GROWTH = 400 << 10
"""KiB by which a process may grow that takes five rows of a file that holds gigabytes."""


def write_repeated_text(file):
    """One long text in every row, which a dictionary stores once."""
    rows = 1500 if LONG else 500
    pq.write_table(pa.table({"text": [REPEATED] * rows, "label": [0, 1] * (rows // 2)}), file)


def write_compressed_texts(file):
    """Texts that differ and are compressed two thousand times."""
    schema = pa.schema({"text": pa.string(), "label": pa.int64()})
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for part in range(15):
            texts = [f"{part} {number} {ONCE}" for number in range(10_000)]
            writer.write_table(pa.table({"text": texts, "label": [0, 1] * 5000}))


def write_repeated_prompt(file):
    """One long prompt in every row."""
    messages = [{"role": "user", "content": REPEATED}]
    pq.write_table(pa.table({"messages": [messages] * 1500}), file)


def take_five_rows(file):
    """Takes five rows, and returns the KiB by which this process has grown."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(expound.load_data(f"parquet:{file}", "all", limit=5)) == 5
    file.with_suffix(".grown").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def test_names_in_tables_of_results_are_no_formulas():
    with record_outcomes("formulas in tables", "results") as counts:
        evil = ["=1+1", "＝1+1", "@SUM(1)", "+1", "-1", "\t=1"]
        text = format_csv("=1", evil, ["＋1"], {"": np.full((len(evil), 1), -0.5)})
        rows = list(csv.reader(io.StringIO(text)))
        assert rows == [["'=1", "'＋1"], *([f"'{name}", "-0.5"] for name in evil)]
        counts |= {"cases": len(evil) + 2}


SMALL_FILES = [write_repeated_text, *([write_compressed_texts, write_repeated_prompt] if LONG else [])]


@pytest.mark.parametrize("write", SMALL_FILES)
def test_five_rows_of_a_small_file_that_holds_gigabytes_take_little_memory(write, tmp_path):
    file = tmp_path / "small.parquet"
    with (
        record_outcomes("small files of gigabytes", write.__name__[6:].replace("_", " ")) as counts,
        forge() as process,
    ):
        write(file)
        assert file.stat().st_size < 2 << 20
        process.start(take_five_rows, file)
        assert process.wait() == 0
        assert int(file.with_suffix(".grown").read_text()) < GROWTH
        counts |= {"cases": 1}


def test_rows_cannot_name_images_outside_of_their_dataset(tmp_path):
    digits = load_digits().images[0].astype(np.uint8)
    outside, folder = tmp_path / "secret.png", tmp_path / "dataset"
    folder.mkdir()
    for file in (outside, folder / "own.png"):
        Image.fromarray(digits).save(file)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    with record_outcomes("image paths in rows", "hub") as counts:
        for path in (outside, folder / ".." / "secret.png", "/etc/passwd", "https://evil.example/a.png"):
            rows = {"image": [{"bytes": None, "path": str(path)}], "label": [0]}
            pq.write_table(datasets.Dataset.from_dict(rows, features=features).data.table, folder / "train.parquet")
            with pytest.raises(ExpoundError, match="expected an image of the dataset in 'image'"):
                expound.load_data(f"hub:{folder}", "train")
            (folder / "train.parquet").unlink()
            counts.update(cases=1, refused=1)
        rows = {"image": [{"bytes": None, "path": str(folder / "own.png")}], "label": [0]}
        pq.write_table(datasets.Dataset.from_dict(rows, features=features).data.table, folder / "train.parquet")
        (row,) = expound.load_data(f"hub:{folder}", "train")
        assert (np.asarray(row["image"]) == digits).all()
        # Other readers have no images: a path in a row is not opened.
        for text in ({"text": "a", "image": str(outside)}, {"text": str(outside)}, {"prompt": f"file://{outside}"}):
            (tmp_path / "rows.jsonl").write_text(json.dumps(text))
            (row,) = expound.load_data(f"jsonl:{tmp_path}/rows.jsonl", "all")
            assert "image" not in row
            counts.update(cases=1)


def test_strange_specs_are_refused_or_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here.csv").write_bytes(SAMPLES["csv"](FEW)["data"])
    local = [name for name in READERS if name not in ("hub", "generated", "digits")]  # others: the net, or made anew
    fields = [f for name in local for f in READERS[name].__dataclass_fields__]
    options = st.lists(st.tuples(st.sampled_from([*fields, "x"]), STRANGE).map("=".join), max_size=2).map("&".join)
    paths = st.one_of(STRANGE, st.sampled_from(["here.csv", ".", "/", "/dev/null", "here.csv/x", "\0", "a" * 5000]))
    with record_outcomes("strange specs", "kind, path and options") as counts:

        @cases(10_000)
        @given(st.sampled_from(local), paths, options, st.one_of(st.none(), STRANGE))
        def attack(name, path, options, split):
            counts["refused" if load(name, f"{path}?{options}", split) is None else "read"] += 1
            counts["cases"] += 1

        attack()
