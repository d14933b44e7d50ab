"""Data that cannot be read raises an error of one line and at most 300 characters, with file and line."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import expound
from expound import ExpoundError

LONG = "x" * 100_000


def write_archive(path, **members):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def write_invalid_utf8(path):
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0\6\0\0\0"), pa.py_buffer(b"fine\xff\xfe")]
    )
    pq.write_table(pa.table({"label": pa.array([0, 1]), "text": bad}), path)


def test_mlqe_without_a_mean_names_the_field(tmp_path):
    write_archive(tmp_path / "en-de-train.tar.gz", a__tsv="index\toriginal\ttranslation\n0\tone\teins\n")
    with pytest.raises(
        ExpoundError, match=r"en-de-train.tar.gz:a.tsv, line 2 has no field 'z_mean'; it has: index, orig"
    ):
        expound.load_data(f"mlqe:{tmp_path}")


@pytest.mark.parametrize("value", ["", "much", "nan", "inf"])
def test_mlqe_with_a_mean_that_is_no_number(tmp_path, value):
    write_archive(tmp_path / "en-de-train.tar.gz", a__tsv=f"original\ttranslation\tz_mean\none\teins\t{value}\n")
    with pytest.raises(ExpoundError, match=r"line 2: expected a number in 'z_mean'"):
        expound.load_data(f"mlqe:{tmp_path}")


def test_a_torn_archive(tmp_path):
    path = tmp_path / "en-de-train.tar.gz"
    write_archive(path, a__tsv="original\ttranslation\tz_mean\n" + "one\teins\t0.5\n" * 5000)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:40] + b"\0" * 30 + whole[70:]):
        path.write_bytes(damaged)
        with pytest.raises(ExpoundError, match="cannot be read as a tar archive"):
            expound.load_data(f"mlqe:{tmp_path}")


def test_parquet_with_bytes_that_are_no_text_names_row_and_column(tmp_path):
    write_invalid_utf8(tmp_path / "a.parquet")
    with pytest.raises(ExpoundError, match=r"a.parquet, row 2: text is not UTF-8"):
        expound.load_data(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("label.jsonl", json.dumps({"text": "a", "label": [LONG]})),
        ("spans.jsonl", json.dumps({"text": "a", "label": 0, "rationale": LONG})),
        ("columns.csv", ",".join(f"{LONG[:20]}{n}" for n in range(4000)) + "\n" + "1," * 3999 + "1"),
        ("columns.jsonl", json.dumps({f"{LONG[:20]}{n}": 1 for n in range(4000)})),
        (
            "answer.jsonl",
            json.dumps({"question": "a", "context": "b", "answers": {"text": [LONG], "answer_start": [0]}}),
        ),
        ("head.csv", f"text,{LONG},{LONG}\na,b,c"),
    ],
)
def test_a_message_is_short_however_long_the_value(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ExpoundError) as error:
        expound.load_data(str(tmp_path / name), split="all")
    message = str(error.value)
    assert len(message) <= 300
    assert "\n" not in message
    assert name in message


def test_a_path_with_line_ends_is_told_in_one_line(tmp_path):
    with pytest.raises(ExpoundError) as error:
        expound.load_data(f"csv:{tmp_path}/a\nb\r\nc.csv")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "a/../../secret"])
def test_a_review_outside_of_its_folder_is_not_read(tmp_path, name):
    (tmp_path / "data" / "docs").mkdir(parents=True)
    (tmp_path / "secret").write_text("nobody shall read this")
    row = {"annotation_id": name, "classification": "NEG", "evidences": []}
    (tmp_path / "data" / "train.jsonl").write_text(json.dumps(row))
    with pytest.raises(ExpoundError, match="name of a document in"):
        expound.load_data(f"eraser:{tmp_path / 'data'}")
