import io
import json
import random
import tarfile

import pytest

from expound.data import load_data
from expound.errors import ExpoundError


def pieces(data, column="text", spans="rationale"):
    return [row[spans] and [row[column][a:b] for a, b in row[spans]] for row in data]


# Trees: an independent reading of the heuristic, on nested lists [label, word] or [label, child, child...].


def leaves(tree):
    return [tree[1]] if isinstance(tree[1], str) else [word for child in tree[1:] for word in leaves(child)]


def labels_below(tree):
    if isinstance(tree[1], str):
        return []
    return [label for child in tree[1:] for label in [child[0], *labels_below(child)]]


def word_scores(tree):
    norm = [abs(label - 2) / 2 for label in (tree[0], *labels_below(tree))]
    if isinstance(tree[1], str) or (
        norm[0] > abs(max(labels_below(tree)) - 2) / 2 and norm[0] > abs(min(labels_below(tree)) - 2) / 2
    ):
        return [norm[0]] * len(leaves(tree))
    return [score for child in tree[1:] for score in word_scores(child)]


def format_tree(tree):
    if isinstance(tree[1], str):
        return f"({tree[0]} {tree[1]})"
    return f"({tree[0]} {' '.join(format_tree(child) for child in tree[1:])})"


def random_tree(rng, depth):
    label = rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])
    if depth == 0 or rng.random() < 0.2:
        return [label, rng.choice(["lid", "kettle", "so", "é", "-LRB-", "a\u00a0b", "1\\/2"])]
    return [label, *(random_tree(rng, depth - 1) for _ in range(rng.choice([1, 2, 2, 3])))]


def sst(folder, trees):
    (folder / "train.txt").write_text("\n".join(map(format_tree, trees)) + "\n", encoding="utf-8")
    return load_data(f"sst:{folder}")


def test_sst_agrees_with_brute_force_on_random_trees(tmp_path):
    rng = random.Random(4)
    trees = [random_tree(rng, depth) for depth in (0, 1, 2, 3, 5) for _ in range(60)]
    data = sst(tmp_path, trees)
    kept = [tree for tree in trees if tree[0] != 2]
    assert len(data) == len(kept)
    for row, tree in zip(data, kept, strict=True):
        plain = [w.replace("-LRB-", "(").replace("\\/", "/") for w in leaves(tree)]
        assert row["text"] == " ".join(plain)
        assert row["label"] == (tree[0] > 2)
        inside = set()
        for start, end in row["rationale"]:
            inside.update(range(start, end))
        at, marks = 0, []
        for word in plain:
            hit = {i in inside for i in range(at, at + len(word))}
            assert len(hit) == 1
            marks += hit
            at += len(word) + 1
        assert marks == [score >= 0.5 for score in word_scores(tree)]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ([3, [2, "rusty"], [2, "lids"]], ["rusty lids"]),  # the root is stronger than all in it: every word
        ([3, [2, "so"], [3, "good"]], ["good"]),  # equal strength is not strictly greater
        ([4, [3, [2, "so"], [3, "good"]], [2, "lid"]], ["so good lid"]),
        ([4, [2, [2, "not"], [0, "awful"]], [3, [2, "oh"], [2, "well"]]], ["awful oh well"]),  # a grandchild stops it
        ([3, [2, [2, "a"], [2, "b"]], [3, [1, "c"], [2, "d"]]], ["c"]),
        ([1, "bad"], ["bad"]),
    ],
)
def test_sst_by_hand(tmp_path, tree, expected):
    assert pieces(sst(tmp_path, [tree])) == [expected]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 a) (3 b)", "balanced brackets"),
        ("(3 (2 a)) (3 b)", "one tree"),
        ("3 a", "outside of one"),
        ("(5 a)", "sentiment of 0 to 4"),
        ("((2 a) 3)", "sentiment of 0 to 4"),
        ("(3 a b)", "either one word or phrases"),
        ("(3 (2 a) b)", "either one word or phrases"),
        ("()", "sentiment of 0 to 4"),
    ],
)
def test_malformed_sst_files_are_refused(tmp_path, line, message):
    (tmp_path / "dev.txt").write_text(f"(3 a)\n{line}\n")
    with pytest.raises(ExpoundError, match=f"line 2.*{message}"):
        load_data(f"sst:{tmp_path}", "dev")


def test_sst_survives_a_very_deep_tree(tmp_path):
    (tmp_path / "train.txt").write_text("(3 " * 5000 + "lid" + ")" * 5000)
    assert pieces(load_data(f"sst:{tmp_path}")) == [["lid"]]


def eraser(folder, evidences, text="a lid ,  loose\nand\tso bent", label="NEG"):
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "d1").write_text(text)
    row = {"annotation_id": "d1", "classification": label, "evidences": evidences}
    (folder / "val.jsonl").write_text(json.dumps(row) + "\n")
    return load_data(f"eraser:{folder}", "val")


def span(start, end):
    return {"docid": "d1", "start_token": start, "end_token": end}


def test_eraser_by_hand(tmp_path):
    data = eraser(tmp_path, [[span(0, 1)], [span(3, 4), span(4, 6)], [span(3, 5)], [span(2, 2)]])
    assert pieces(data) == [["a", "loose\nand\tso bent"]]  # single spaces and line ends alone separate tokens
    assert data["text"][0] == "a lid ,  loose\nand\tso bent"
    assert eraser(tmp_path, [])["rationale"][:] == [[]]


def test_malformed_eraser_files_are_refused(tmp_path):
    with pytest.raises(ExpoundError, match=r"line 1: expected evidence within 6 tokens, got \[4, 7\]"):
        eraser(tmp_path, [[span(4, 7)]])
    with pytest.raises(ExpoundError, match=r"expected a label of NEG, POS; .*, got 'MEH'"):
        eraser(tmp_path, [], label="MEH")
    with pytest.raises(ExpoundError, match="list of lists"):
        eraser(tmp_path, [span(0, 1)])
    eraser(tmp_path, [])
    (tmp_path / "docs" / "d1").unlink()
    with pytest.raises(ExpoundError, match=r"docs/d1.*found nothing"):
        load_data(f"eraser:{tmp_path}", "dev")


def test_snli_by_hand(tmp_path):
    rows = [
        {"premise": f"p {i}", "hypothesis": f"h {i}", "label": label} for i, label in enumerate(["neutral", "-", None])
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load_data(f"snli:{tmp_path}", "validation")
    assert data[:] == {
        "text": ["p 0"],
        "text_pair": ["h 0"],
        "label": [1],
        "rationale": [None],
        "rationale_pair": [None],
    }
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[0] | {"label": "maybe"}))
    with pytest.raises(
        ExpoundError, match="line 1: expected a label of entailment, neutral, contradiction, got 'maybe'"
    ):
        load_data(f"snli:{tmp_path}", "test")


def squad(folder, answers, context="an old tin lid"):
    question = {"question": "what?", "id": "q1", "answers": answers}
    content = {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}
    (folder / "s.json").write_text(json.dumps(content))
    return load_data(f"squad:{folder / 's.json'}", "all")


def test_squad_by_hand(tmp_path):
    answers = [
        {"text": "tin", "answer_start": 7},
        {"text": "old tin", "answer_start": 3},
        {"text": "tin", "answer_start": 7},
    ]
    data = squad(tmp_path, answers)
    assert pieces(data, "text_pair", "answer") == [["tin", "old tin"]]
    assert squad(tmp_path, [])["answer"][:] == [[]]


def test_squad_with_the_sentence_of_the_answer_for_context(tmp_path):
    context = "One is here. The tin lid is old. Nobody has a lid. A lid."
    answers = [{"text": "lid", "answer_start": 21}, {"text": "lid", "answer_start": 46}]
    squad(tmp_path, answers, context)
    data = load_data(f"squad:{tmp_path / 's.json'}?sentences=true", "all")
    assert data[0]["text_pair"] == "The tin lid is old."
    assert [data[0]["text_pair"][a:b] for a, b in data[0]["answer"]] == ["lid"]
    squad(tmp_path, [])
    with pytest.raises(ExpoundError, match="no rows"):
        load_data(f"squad:{tmp_path / 's.json'}?sentences=true", "all")


def test_malformed_squad_files_are_refused(tmp_path):
    with pytest.raises(ExpoundError, match="the answer 'tin' is not at character 8"):
        squad(tmp_path, [{"text": "tin", "answer_start": 8}])
    with pytest.raises(ExpoundError, match="no field 'text'"):
        squad(tmp_path, [{"answer_start": 8}])
    (tmp_path / "s.json").write_text('{"data": [3]}')
    with pytest.raises(ExpoundError, match="article 1: expected an object with a field 'paragraphs', got int"):
        load_data(f"squad:{tmp_path / 's.json'}")
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(ExpoundError, match="expected an object with a field 'data', got list"):
        load_data(f"squad:{tmp_path / 's.json'}")
    (tmp_path / "s.json").write_text("{\n3}")
    with pytest.raises(ExpoundError, match="line 2 is not JSON"):
        load_data(f"squad:{tmp_path / 's.json'}")


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, lines in members.items():
            content = "\n".join([*lines, ""]).encode()
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def mlqe(folder, post_edits=None, score="-0.5"):
    rows = ["index\toriginal\ttranslation\tz_mean", '0\t"Der Deckel, ja', f'\t"The lid, yes\t{score}']
    rows = [rows[0], rows[1] + rows[2], "1\tNein.\tNo.\t1.25"]
    archive(folder / "de-en-dev.tar.gz", {"dev.deen.df.short.tsv": rows, "dev.doc_ids": ["x", "y"]})
    if post_edits:
        archive(folder / "de-en-postediting-dev.tar.gz", {f"dev.{name}": lines for name, lines in post_edits.items()})
    return load_data(f"mlqe:{folder}?pair=de-en", "dev")


EDITS = {  # in another order than the scores, and one of the two pairs not the same
    "src": ["Nein .", '" Der Deckel , ja'],
    "mt": ["Nope .", '" The lid , yes'],
    "source_tags": ["BAD OK", "OK BAD BAD OK BAD"],
    "tags": ["OK BAD OK OK OK", "BAD OK BAD OK BAD BAD BAD BAD OK OK OK"],
}


def test_mlqe_matches_post_edits_by_text(tmp_path):
    data = mlqe(tmp_path, EDITS)
    assert data["text"][:] == ['"Der Deckel, ja', "Nein."]
    assert data["label"][:] == [-0.5, 1.25]
    assert pieces(data) == [["Der Deckel", "ja"], None]
    assert pieces(data, "text_pair", "rationale_pair") == [["lid,"], None]


def test_mlqe_without_post_edits_has_no_rationales(tmp_path):
    assert mlqe(tmp_path)["rationale"][:] == [None, None]
    with pytest.raises(ExpoundError, match="unknown split 'train'"):
        load_data(f"mlqe:{tmp_path}?pair=de-en", "train")
    with pytest.raises(ExpoundError, match=r"expected one of en-de-train.tar.gz, en-de-dev.tar.gz"):
        load_data(f"mlqe:{tmp_path}")


def test_mlqe_of_several_pairs_is_their_rows_one_after_the_other(tmp_path):
    rows = mlqe(tmp_path)["text"][:]
    archive(tmp_path / "et-en-dev.tar.gz", {"dev.tsv": ["original\ttranslation\tz_mean", "Jah.\tYes.\t2"]})
    data = load_data(f"mlqe:{tmp_path}?pair=de-en,et-en", "dev")
    assert data["text"][:] == [*rows, "Jah."]
    assert load_data(data.info.description, "dev")[:] == data[:]
    with pytest.raises(ExpoundError, match=r"ro-en-dev.tar.gz cannot be read as a tar archive"):
        load_data(f"mlqe:{tmp_path}?pair=de-en,ro-en", "dev")


def test_malformed_mlqe_files_are_refused(tmp_path):
    with pytest.raises(ExpoundError, match="line 2: expected a number in 'z_mean', got 'high'"):
        mlqe(tmp_path, score="high")
    with pytest.raises(ExpoundError, match="line 2: expected 4 cells between tabs, got 5"):
        mlqe(tmp_path, score="1\t2")
    with pytest.raises(ExpoundError, match="line 1: expected a tag for each word"):
        mlqe(tmp_path, EDITS | {"tags": ["OK", EDITS["tags"][1]]})
    with pytest.raises(ExpoundError, match="as many lines"):
        mlqe(tmp_path, EDITS | {"tags": EDITS["tags"][:1]})
    mlqe(tmp_path, EDITS)
    (tmp_path / "de-en-dev.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ExpoundError, match="cannot be read as a tar archive"):
        load_data(f"mlqe:{tmp_path}?pair=de-en", "dev")


@pytest.mark.real
def test_real_sst_has_the_published_counts(real_data):
    folder = real_data / "sst"
    sizes = {split: len(load_data(f"sst:{folder}", split)) for split in ("train", "dev", "test")}
    assert sizes == {"train": 6920, "dev": 872, "test": 1821}


@pytest.mark.real
def test_real_movies_mark_the_evidence_their_annotators_quote(real_data):
    folder = real_data / "movies"
    for split, file, size in (("train", "train", 1800), ("dev", "val", 200), ("test", "test", 199)):
        data = load_data(f"eraser:{folder}", split)
        assert len(data) == size
        raw = [json.loads(line) for line in (folder / f"{file}.jsonl").read_text().splitlines()]
        for row, annotation in zip(data, raw, strict=True):
            marked = [" ".join(row["text"][a:b].split()) for a, b in row["rationale"]]
            for evidence in (e for group in annotation["evidences"] for e in group):
                assert any(evidence["text"] in passage for passage in marked) or not evidence["text"]


@pytest.mark.real
def test_real_snli_squad_and_reviews_have_their_sizes(real_data):
    assert [len(load_data(f"snli:{real_data / 'snli'}", split)) for split in ("dev", "test")] == [9842, 9824]
    everything = load_data(f"squad:{real_data / 'squad/dev-subset.json'}", "all")
    assert len(everything) == 1407
    assert sum(answer == [] for answer in everything["answer"]) == 702
    spec = f"labeled:{real_data / 'reviews/customer-reviews.txt'}?skip_empty=true"
    assert len(load_data(spec, "all")) == 3771
    assert sum(len(load_data(spec, split)) for split in ("train", "dev", "test")) == 3771


@pytest.mark.real
@pytest.mark.parametrize(("pair", "matched"), [("en-de", 993), ("ro-en", 1000), ("et-en", 1000)])
def test_real_mlqe_marks_as_many_words_as_are_tagged(real_data, pair, matched):
    folder = real_data / "mlqe-pe"
    data = load_data(f"mlqe:{folder}?pair={pair}", "dev")
    assert len(data) == 1000
    assert len(load_data(f"mlqe:{folder}?pair={pair}")) == 7000
    known = [i for i, rationale in enumerate(data["rationale"]) if rationale is not None]
    assert len(known) == matched
    with tarfile.open(folder / f"{pair}-postediting-dev.tar.gz") as tar:
        sources, tags = (
            tar.extractfile(f"{pair}-dev/dev.{name}").read().decode().split("\n") for name in ("src", "source_tags")
        )
    for i in known:  # the archives happen to be in the same order, which the reader does not rely on
        words = zip(sources[i].split(), tags[i].split(), strict=True)
        bad = "".join(word for word, tag in words if tag == "BAD")
        text = data["text"][i]
        assert "".join("".join(text[a:b].split()) for a, b in data["rationale"][i]) == bad
