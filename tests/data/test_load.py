import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Value

from expound.data import load_data
from expound.data.load import open_reader
from expound.data.splits import is_in_split
from expound.errors import ExpoundError

REVIEWS = [
    {"text": "not a good kettle", "label": "bad", "rationale": [[0, 3], [6, 10]]},
    {"text": "a good kettle", "label": "good", "rationale": [[2, 6]]},
    {"text": "a kettle", "label": "good", "rationale": None},
]


def write(path, content, encoding="utf-8"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return str(path)


def as_jsonl(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def as_csv(rows):
    cells = [[row["text"], row["label"], json.dumps(row["rationale"])] for row in rows]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
    return "text,label,rationale\r\n" + "\r\n".join(quoted) + "\r\n"


@pytest.fixture
def three_files(tmp_path):
    pq.write_table(pa.Table.from_pylist(REVIEWS), tmp_path / "r.parquet")
    write(tmp_path / "r.jsonl", as_jsonl(REVIEWS))
    write(tmp_path / "r.csv", as_csv(REVIEWS))
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("prefix", ["", "NAME:"])
def test_the_same_table_in_three_formats(three_files, suffix, prefix):
    data = load_data(prefix.replace("NAME", suffix) + str(three_files / f"r.{suffix}"), "all")
    assert data.features["label"] == ClassLabel(names=["bad", "good"])
    assert [data.features["label"].int2str(row["label"]) for row in data] == [row["label"] for row in REVIEWS]
    assert data["text"][:] == [row["text"] for row in REVIEWS]
    assert data["rationale"][:] == [row["rationale"] for row in REVIEWS]
    assert data.info.description == f"{suffix}:{three_files / f'r.{suffix}'}"


def test_options_in_the_spec_and_as_keywords(tmp_path):
    path = write(tmp_path / "t.csv", "review;stars\nfine pan;4\nno lid;1\n")
    spec = f"csv:{path}?text_column=review&delimiter=%3B"
    plain = load_data(spec, "all", label_column="stars")
    assert plain.features["label"].names == ["1", "4"]
    assert plain["label"][:] == [1, 0]
    scores = load_data(f"{spec}&label_column=nowhere", "all", label_column="stars", task="regression")
    assert scores.features["label"] == Value("float32")
    assert scores["label"][:] == [4.0, 1.0]
    assert load_data(scores.info.description, "all")[:] == scores[:]


@pytest.mark.parametrize(
    ("head", "text", "pair"),
    [
        (["sentence"], "sentence", None),
        (["sentence2", "sentence1"], "sentence1", "sentence2"),
        (["hypothesis", "premise"], "premise", "hypothesis"),
        (["question1", "question2"], "question1", "question2"),
        (["sentence", "question"], "question", "sentence"),
        (["text", "text_pair"], "text", "text_pair"),
    ],
)
@pytest.mark.parametrize("label", ["label", "labels"])
def test_usual_names_are_recognized(tmp_path, head, text, pair, label):
    rows = [{**{name: f"{name} {i}" for name in head}, label: i} for i in range(2)]
    data = load_data(write(tmp_path / "t.jsonl", as_jsonl(rows)), "all")
    assert data["text"][:] == [row[text] for row in rows]
    assert data["label"][:] == [0, 1]
    if pair:
        assert data["text_pair"][:] == [row[pair] for row in rows]
    else:
        assert set(data.column_names) == {"text", "label", "rationale"}


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("csv:mine.csv", "columns: text ← review; no label, no rationale (unused: stars, day; give --label-column, "
         "--rationale-column)"),
        ("csv:mine.csv?label_column=stars", "columns: text ← review, label ← stars; no rationale (unused: day; give "
         "--rationale-column)"),
        ("csv:mine.csv?label_column=stars&split_column=day", "columns: text ← review, label ← stars; no rationale"),
        ("csv:mine.csv?text_column=title", ""),
        ("jsonl:whole.jsonl", "columns: text, label, rationale"),
        ("jsonl:chats.jsonl", ""),
        ("jsonl:asked.jsonl", "columns: text ← question, text_pair ← context, answer ← answers"),
    ],
)  # fmt: skip
def test_the_columns_that_are_read_and_those_that_are_not(spec, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("mine.csv"), "review,stars,day\na film,5,train\ndull,1,dev\n")
    write(Path("whole.jsonl"), '{"text": "a film"}\n{"text": "dull", "label": 0, "rationale": [[0, 4]]}\n')
    write(Path("chats.jsonl"), '{"prompt": "When?", "response": "Now."}\n')
    write(Path("asked.jsonl"), '{"question": "Who?", "context": "Ann.", "answers": [[0, 3]]}\n')
    assert open_reader(spec).describe_columns() == line


def test_question_answering_columns(tmp_path):
    answers = {"text": ["tin", "tin", "old tin"], "answer_start": [6, 6, 2]}
    row = {"question": "of what?", "context": "a old tin", "answers": {"text": [], "answer_start": []}}
    rows = [row, row | {"answers": answers}]
    with pytest.raises(ExpoundError, match="within 9 characters"):
        load_data(write(tmp_path / "a.jsonl", as_jsonl([row | {"answers": [[2, 99]]}])), "all")
    data = load_data(write(tmp_path / "t.jsonl", as_jsonl(rows)), "all")
    assert data["answer"][:] == [[], [[6, 9], [2, 9]]]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["tin"], "answer_start": [2]}, "'tin' is not at character 2"),
        ({"text": ["tin"], "answer_start": ["6"]}, "'tin' is not at character 6"),
        ({"text": ["tin"], "answer_start": 6}, "expected a list in 'answer_start', got int"),
        ({"text": ["tin", "old"], "answer_start": [6]}, "expected a start for each answer, got 1 for 2"),
    ],
)
def test_answers_stand_where_a_table_says(tmp_path, answers, message):
    rows = [{"question": "of what?", "context": "a old tin", "answers": answers}]
    with pytest.raises(ExpoundError, match=f"line 1: .*{message}"):
        load_data(write(tmp_path / "t.jsonl", as_jsonl(rows)), "all")


def test_columns_of_later_rows_are_read(tmp_path):
    rows = [{"text": "a kettle", "label": 1}, {"text": "a lid", "label": 0, "rationale": [[2, 5]]}]
    data = load_data(write(tmp_path / "t.jsonl", as_jsonl(rows)), "all")
    assert data["rationale"][:] == [None, [[2, 5]]]
    with pytest.raises(ExpoundError, match="line 1 has no field 'label'"):
        load_data(write(tmp_path / "l.jsonl", as_jsonl([{"text": "a"}, *rows])), "all")


def test_the_number_one_is_one_class_however_it_is_written(tmp_path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 1.0}, {"text": "c", "label": 0.0}]
    data = load_data(write(tmp_path / "t.jsonl", as_jsonl(rows)), "all")
    assert data.features["label"].names == ["0", "1"]
    assert data["label"][:] == [1, 1, 0]


def test_labels_with_a_fraction_make_a_regression(tmp_path):
    data = load_data(write(tmp_path / "t.csv", "text,label\na,1\nb,2.5\n"), "all")
    assert data["label"][:] == [1.0, 2.5]
    whole = load_data(write(tmp_path / "w.csv", "text,label\na,10\nb,9\nc,10\n"), "all")
    assert whole.features["label"].names == ["9", "10"]


def test_a_folder_holds_a_file_a_split(tmp_path):
    for name, label in (("train", "b"), ("validation", "a"), ("test", "c")):
        write(tmp_path / f"{name}.csv", f"text,label\n{name} text,{label}\n")
    for split, label in (("train", 1), ("dev", 0), ("val", 0), ("validation", 0), ("test", 2)):
        data = load_data(f"csv:{tmp_path}", split)
        assert data["label"][:] == [label]
        assert data.features["label"].names == ["a", "b", "c"]
    with pytest.raises(ExpoundError, match=r"unknown split 'all'.*dev, test, train"):
        load_data(f"csv:{tmp_path}", "all")


def test_a_split_column(tmp_path):
    path = write(tmp_path / "t.csv", "text,part\na,train\nb,val\nc,train\n")
    assert load_data(path, split_column="part")["text"][:] == ["a", "c"]
    assert load_data(path, "dev", split_column="part")["text"][:] == ["b"]
    with pytest.raises(ExpoundError, match="all, dev, train"):
        load_data(path, "test", split_column="part")


def test_division_is_a_partition_that_keeps_equal_texts_together(tmp_path):
    lines = [f"{i % 2} text number {i % 300}" for i in range(600)]
    spec = "labeled:" + write(tmp_path / "l.txt", "\n".join(lines))
    parts = {split: load_data(spec, split)["text"][:] for split in ("train", "dev", "test")}
    assert sorted(text for part in parts.values() for text in part) == sorted(line[2:] for line in lines)
    assert not set(parts["train"]) & set(parts["test"])
    assert 0.7 < len(parts["train"]) / 600 < 0.9
    assert load_data(spec, "train")["text"][:] == parts["train"]
    assert load_data(spec, "train", seed=1)["text"][:] != parts["train"]
    assert load_data(f"{spec}?seed=1", "train")[:] == load_data(spec, "train", seed=1)[:]


def test_limit_draws_nested_samples_in_order(tmp_path):
    rows = [{"text": f"text {i}", "label": int(i > 50)} for i in range(100)]
    path = write(tmp_path / "t.jsonl", as_jsonl(rows))
    small, large = (load_data(path, "all", limit=n)["text"][:] for n in (10, 40))
    order = [row["text"] for row in rows]
    assert len(small) == 10
    assert set(small) < set(large)
    assert small == sorted(small, key=order.index)
    assert len(set(load_data(path, "all", limit=10)["label"])) == 2
    assert load_data(path, "all", limit=10, seed=3)["text"][:] != small
    assert len(load_data(path, "all", limit=1000)) == 100


def test_a_changed_file_gives_new_data(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\nabc,0\n")
    stamp = os.stat(path)
    assert load_data(path, "all")["text"][:] == ["abc"]
    write(tmp_path / "t.csv", "text,label\nxyz,0\n")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load_data(path, "all")["text"][:] == ["xyz"]
    assert load_data(path, "all").cache_files == []


def test_hub_reader_on_a_local_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "train.jsonl", as_jsonl([{"sentence": "fine", "label": 1}, {"sentence": "no", "label": 0}]))
    write(tmp_path / "d" / "validation.jsonl", as_jsonl([{"sentence": "so so", "label": 1}]))
    data = load_data(f"hub:{tmp_path / 'd'}", "dev")
    assert (data["text"][:], data["label"][:]) == (["so so"], [1])
    with pytest.raises(ExpoundError, match=r"unknown split 'test'.*dev, train"):
        load_data(f"hub:{tmp_path / 'd'}", "test")


def test_a_missing_hub_dataset_is_an_error(tmp_path):
    with pytest.raises(ExpoundError, match="cannot load"):
        load_data(f"hub:{tmp_path / 'nothing'}")


def test_digits_are_divided_once_and_for_all():
    parts = {split: load_data("digits", split) for split in ("train", "dev", "test")}
    assert {split: len(part) for split, part in parts.items()} == {"train": 1297, "dev": 250, "test": 250}
    image = parts["train"][0]["image"]
    assert (image.size, image.mode) == ((8, 8), "RGB")
    everything = [(row["image"].tobytes(), row["label"]) for part in parts.values() for row in part]
    from sklearn.datasets import load_digits

    assert sorted(label for _, label in everything) == sorted(load_digits().target)
    assert len({pixels for pixels, _ in everything}) == len({image.tobytes() for image in load_digits().images})
    assert load_data("digits", "dev", seed=1)["label"][:] != parts["dev"]["label"][:]


BAD = {
    "missing": (None, "found nothing"),
    "empty": ("", "is empty"),
    "blank": (" \n\n", "is empty"),
    "not_utf8": ("text,label\ncafé,1\n".encode("latin-1"), r"line 2 is not UTF-8"),
    "no_rows": ("text,label\n", "is empty: it has no rows"),
    "no_column": (
        "body,label\na,1\n",
        r"usual name.*sentence, review.*it has: body, label; name it with text_column=",
    ),
    "wide_row": ("text,label\na,1\nb,1,2\n", r"line 3: expected 2 cells, got 3"),
    "quote": ('text,label\n"a,1\n', "not valid csv"),
    "two_of_a_name": ("text,label,label\na,1,2\n", "several columns 'label'"),
    "no_number": ("text,label\na,0\nb,nan\nc,1\n", r"line 3: expected a label in 'label', got 'nan'"),
    "no_class": ("text,label\na,pos\nb,nan\nc,neg\n", r"line 3: expected a label in 'label', got 'nan'"),
    "infinite": ("text,label\na,0.5\nb,1e999\n", r"line 3: expected a label in 'label', got '1e999'"),
    "no_label": ("text,label\na,1\nb,\n", r"line 3: expected a label"),
    "no_text": ("text,label\na,1\n ,0\n", r"line 3: the text in 'text' is empty"),
    "bad_spans": ('text,label,rationale\nab,1,"[[0, 9]]"\n', r"line 2: expected a list of \[start, end\]"),
    "not_json": ("text,label,rationale\nab,1,[[0\n", r"line 2: expected spans as JSON"),
}


def test_digits_are_turned_against_the_clock_by_their_label():
    plain, turned = load_data("digits", "dev"), load_data("digits?turned=true", "dev")
    assert turned.features["label"].names == ["0", "90", "180", "270"]
    assert len(turned) == 4 * len(plain)
    upright = np.asarray(plain[7]["image"])
    for quarters in range(4):
        row = turned[4 * 7 + quarters]
        assert row["label"] == quarters
        assert (np.asarray(row["image"]) == np.rot90(upright, quarters)).all()


@pytest.mark.parametrize("case", BAD)
def test_bad_csv_files_say_what_is_wrong(tmp_path, case):
    content, message = BAD[case]
    path = tmp_path / "t.csv"
    if content is not None:
        write(path, content)
    with pytest.raises(ExpoundError, match=message) as caught:
        load_data(str(path), "all")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", '{"text": "a"}\n{"text"\n', "line 2 is not JSON"),
        ("t.jsonl", "[1]\n", "line 1: expected a JSON object, got list"),
        ("t.jsonl", '{"text": "a"}\n{"body": "a"}\n', "line 2 has no field 'text'; it has: body"),
        ("t.jsonl", '{"text": 3}\n', "line 1: expected text in 'text', got int"),
        ("t.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "label": NaN}\n', "line 2: expected a label.*nan"),
        ("t.jsonl", '{"text": "a \\ud800"}\n', "line 1 is no JSON that can be read.*surrogate"),
        ("t.jsonl", "[" * 100_000, "line 1 is no JSON that can be read.*recursion"),
        ("t.jsonl", '{"text": "a", "label": ' + "9" * 5000 + "}", "line 1 is no JSON that can be read.*digits"),
        ("t.jsonl", '{"text": "a", "label": ' + "9" * 500 + ', "x": 0.5}', "line 1: expected a label"),
        ("t.parquet", "not parquet", "cannot be read as Parquet"),
    ],
)
def test_bad_tables_name_the_place(tmp_path, name, content, message):
    with pytest.raises(ExpoundError, match=message):
        load_data(write(tmp_path / name, content), "all")


def test_bad_specs_say_what_is_valid():
    cases = [
        ({"spec": "stt:x"}, r"unknown kind of data 'stt'. Did you mean 'sst'\?"),
        ({"spec": "notes.md"}, "unknown kind of data"),
        ({"spec": "sst:"}, "expected a path"),
        ({"spec": "sst:/nowhere"}, "expected a folder at '/nowhere', found nothing"),
        ({"spec": "digits:x"}, "expected no path"),
        ({"spec": "digits", "split": "tset"}, r"unknown split 'tset'. Did you mean 'test'\?.*dev, test, train"),
        ({"spec": "digits?shortcut=1"}, "unknown parameter of digits 'shortcut'"),
        ({"spec": "digits?seed=one"}, "digits: seed: expected int, got 'one'"),
        ({"spec": "digits", "limit": 0}, "at least 1 example"),
        ({"spec": "digits", "limit": 9, "seed": -1}, "seed of at least 0, got -1"),
        ({"spec": "generated?task=translation"}, "unknown task 'translation'"),
        ({"spec": "generated?domain=film"}, "Did you mean 'films'"),
        ({"spec": "generated?shortcut=2"}, "from 0 to 1"),
        ({"spec": "generated?size=0"}, "at least 1"),
        ({"spec": "labeled:x?skip_empty=maybe"}, "true or false"),
        ({"spec": f"csv:{__file__}?task=ranking"}, "unknown task 'ranking'"),
    ]
    for arguments, message in cases:
        with pytest.raises(ExpoundError, match=message):
            load_data(**arguments)


def test_a_split_without_rows_names_those_that_have_some(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\na film,1\n")
    there = [split for split in ("train", "dev", "test") if is_in_split("a film", split, 0)]
    empty = "dev" if there != ["dev"] else "test"
    with pytest.raises(ExpoundError, match=f"no rows in its split {empty}; splits with rows: {there[0]}, all"):
        load_data(path, empty)


def test_labeled_lines(tmp_path):
    path = write(tmp_path / "l.txt", "pos good lid\r\nneg no lid\n\npos \n")
    with pytest.raises(ExpoundError, match=r"line 4: the text in 'text' is empty.*skip_empty"):
        load_data(f"labeled:{path}", "all")
    data = load_data(f"labeled:{path}?skip_empty=true", "all")
    assert (data["text"][:], data["label"][:]) == (["good lid", "no lid"], [1, 0])
    with pytest.raises(ExpoundError, match="line 1: expected a label, a space and a text"):
        load_data("labeled:" + write(tmp_path / "m.txt", "word\n"), "all")


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    path = write(tmp_path / "t.csv", b"\xef\xbb\xbftext,label\r\na b,1\r\n")
    assert load_data(path, "all")["text"][:] == ["a b"]
    assert Path(path).read_bytes().startswith(b"\xef\xbb\xbf")
