"""Corpora in the layouts in which they are published, read without conversion."""

import json

import pytest
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as Picture

from corpora import CORPORA, cells, eraser_task, evidence, lines
from expound.data import load_data
from expound.errors import ExpoundError


def read(folder, name, split="train", query="", write=None):
    folder.mkdir(exist_ok=True)
    return load_data(f"{name}:{(write or CORPORA[name])(folder)}{query}", split)


def get_label_names(data):
    return [data.features["label"].int2str(label) for label in data["label"]]


def pieces(data, text="text", spans="rationale"):
    return [found and [row[a:b] for a, b in found] for row, found in zip(data[text], data[spans], strict=True)]


def require_error(message, *arguments, **options):
    with pytest.raises(ExpoundError, match=message) as error:
        load_data(*arguments, **options)
    assert len(str(error.value)) <= 300
    assert "\n" not in str(error.value)


def test_hotpotqa_asks_about_paragraphs(tmp_path):
    first, second = read(tmp_path, "hotpotqa", "dev")
    assert first["sources"][0] == {"name": "Lid", "text": "A lid is round. It is old."}
    assert (first["evidence"], second["evidence"]) == (["Lid", "Cup"], ["Tin"])
    assert first["prompt"] == "{sources}\n\nQuestion: Which is old, a lid or a cup?\nAnswer:"
    assert (first["response"], first["kind"]) == (" a lid", "comparison")


def test_ruler_cuts_a_long_text_into_sources(tmp_path):
    needle, documents, without = read(tmp_path, "ruler", "dev", query="?parts=3")
    names = ["part 1", "part 2", "part 3"]
    assert [source["name"] for source in needle["sources"]] == names
    assert needle["evidence"] == ["part 2"]
    assert needle["prompt"].splitlines()[1:] == [
        "{part 1}{part 2}{part 3}", "What is the special magic number for lid mentioned in the provided text? It is",
    ]  # fmt: skip
    assert (needle["response"], needle["kind"]) == (" 71", tmp_path.name)
    assert [source["text"].count("grass") for source in needle["sources"]] == [3, 0, 2]
    assert [source["text"].strip() for source in documents["sources"]] == [
        "Document 1:\nA lid is 1.", "Document 2:\nA cup is 2.",
    ]  # fmt: skip
    assert (documents["evidence"], without["evidence"]) == (["part 2"], None)
    require_error("expected 2 parts of a text or more, got 1", f"ruler:{tmp_path}?parts=1", "dev")


def test_esnli_marks_words_with_their_punctuation(tmp_path):
    train = read(tmp_path, "esnli")
    assert train["text"][:] == ["A man, who sings, is old.", 'He said "so".']
    assert get_label_names(train) == ["entailment", "neutral"]
    assert pieces(train) == [["sings,"], []]
    assert pieces(train, "text_pair", "rationale_pair") == [["makes music."], ["is", "3."]]  # its star is a star
    dev = load_data(f"esnli:{tmp_path}", "dev")
    assert pieces(dev) == [["sings,"]]
    assert pieces(dev, "text_pair", "rationale_pair") == [["music."]]
    assert pieces(load_data(f"esnli:{tmp_path}?share=0.1", "dev")) == [["sings, is"]]
    assert pieces(load_data(f"esnli:{tmp_path}?share=1", "dev")) == [[]]


def test_malformed_esnli_files_are_refused(tmp_path):
    CORPORA["esnli"](tmp_path)
    head = ["gold_label", "Sentence1", "Sentence2", "Sentence1_marked_1", "Sentence2_marked_1"]
    cells(tmp_path / "esnli_test.csv", [head, ["neutral", "a b", "c", "*a b", "c d"]])
    require_error(
        "csv, line 2: expected the 1 words of the text in 'Sentence2_marked_1', got 2",
        f"esnli:{tmp_path}",
        "test",
    )
    cells(tmp_path / "esnli_test.csv", [head, ["so", "a", "c", "a", "c"]])
    require_error(
        "line 2: expected a label of entailment, neutral, contradiction, got 'so'", f"esnli:{tmp_path}", "test"
    )
    (tmp_path / "esnli_train_2.csv").unlink()
    require_error("expected a file at .*esnli_train_2.csv", f"esnli:{tmp_path}")


def test_hatexplain_takes_the_majority_and_leaves_out_what_has_none(tmp_path):
    data = read(tmp_path, "hatexplain")
    assert data["text"][:] == ["you utter lid go", "a fine day"]
    assert data.features["label"].names == ["hatespeech", "normal", "offensive"]
    assert get_label_names(data) == ["offensive", "normal"]
    assert pieces(data) == [["utter lid"], None]
    assert pieces(load_data(f"hatexplain:{tmp_path}?share=1")) == [["lid"], None]
    assert len(load_data(f"hatexplain:{tmp_path}", "dev")) == 2
    assert len(load_data(f"hatexplain:{tmp_path}", "test")) == 1
    divisions = tmp_path / "post_id_divisions.json"
    divisions.write_text(divisions.read_text().replace("test", "val}"))
    require_error("names of splits are words with dots between them, got 'val}'", f"hatexplain:{tmp_path}", "val}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rationales": [[1]]}, "post 2_twitter: expected lists of 3 marks, one for each token, in 'rationales'"),
        ({"post_tokens": "a fine day"}, "post 2_twitter: expected a list in 'post_tokens', got str"),
        ({"post_tokens": ["a", None]}, "post 2_twitter: expected text in 'post_tokens', got NoneType"),
        ({"annotators": [{"label": "rude"}] * 2}, "expected a label of hatespeech, normal, offensive, got 'rude'"),
        ({"annotators": [{"target": []}]}, "post 2_twitter has no field 'label'; it has: target"),
    ],
)
def test_malformed_hatexplain_files_are_refused(tmp_path, change, message):
    path = CORPORA["hatexplain"](tmp_path) / "dataset.json"
    posts = json.loads(path.read_text())
    path.write_text(json.dumps(posts | {"2_twitter": posts["2_twitter"] | change}))
    require_error(f"dataset.json, {message}" if message.startswith("post") else message, f"hatexplain:{tmp_path}")


QUESTION = {"annotation_id": "q1", "query_type": None}


def test_eraser_multirc_has_the_question_first_and_its_evidence_in_the_document(tmp_path):
    row = QUESTION | {"query": "Who sang ? || A lid", "classification": "False", "docids": ["d.txt"]}
    rows = [row | {"evidences": [[evidence("d.txt", 2, 4)], [evidence("d.txt", 3, 5)]]}]
    eraser_task(tmp_path, rows, **{"d.txt": "It rained .\nNobody  sang ,\u00a0 he said .\n"})
    data = load_data(f"eraser:{tmp_path}", "test")
    assert data["text"][:] == ["Who sang ? || A lid"]
    assert data["rationale"][:] == [None]
    assert pieces(data, "text_pair", "rationale_pair") == [[".\nNobody  sang"]]
    assert data.features["label"].names == ["False", "True"]


def test_eraser_fever_joins_its_documents(tmp_path):
    row = QUESTION | {"query": "A lid sang .", "classification": "SUPPORTS", "docids": ["A_Lid", "B"]}
    eraser_task(
        tmp_path, [row | {"evidences": [[evidence("B", 0, 1), evidence("A_Lid", 1, 2)]]}], A_Lid="a lid", B="it sang"
    )
    data = load_data(f"eraser:{tmp_path}", "train")
    assert data["text_pair"][:] == ["a lid\nit sang"]
    assert pieces(data, "text_pair", "rationale_pair") == [["lid", "it"]]
    assert get_label_names(data) == ["SUPPORTS"]


def test_eraser_evidence_inference_and_boolq_have_their_classes(tmp_path):
    row = QUESTION | {"query": "What of lids ?", "classification": "no significant difference", "evidences": []}
    (tmp_path / "ei").mkdir()
    eraser_task(tmp_path / "ei", [row | {"docids": ["1"]}], **{"1": "no lids"})
    data = load_data(f"eraser:{tmp_path / 'ei'}", "dev")
    assert get_label_names(data) == ["no significant difference"]
    assert data["rationale_pair"][:] == [[]]
    (tmp_path / "boolq").mkdir()
    eraser_task(tmp_path / "boolq", [row | {"docids": ["1"], "classification": "True"}], **{"1": "no lids"})
    assert get_label_names(load_data(f"eraser:{tmp_path / 'boolq'}", "dev")) == ["True"]


def test_eraser_cose_reads_its_questions_from_one_file(tmp_path):
    row = {"annotation_id": "q1", "query": "lid [sep] cup", "query_type": "c", "classification": "B", "docids": None}
    lines(tmp_path / "train.jsonl", [row | {"evidences": [[evidence("q1", 3, 4)]]}])
    lines(tmp_path / "docs.jsonl", [{"docid": "q1", "document": "what  holds tea ?"}])  # an empty token counts here
    data = load_data(f"eraser:{tmp_path}")
    assert pieces(data, "text_pair", "rationale_pair") == [["tea"]]
    assert data["text"][:] == ["lid [sep] cup"]
    assert get_label_names(data) == ["B"]
    lines(tmp_path / "docs.jsonl", [{"docid": "q2", "document": "what ?"}])
    require_error(r"train.jsonl, line 1: the document 'q1' is not in .*docs.jsonl", f"eraser:{tmp_path}")


def test_eraser_esnli_has_a_rationale_on_each_side(tmp_path):
    row = QUESTION | {"query": "", "classification": "neutral", "docids": None}
    lines(tmp_path / "val.jsonl", [row | {"evidences": [[evidence("q1_hypothesis", 1, 2)]]}])
    sides = {"q1_premise": "a man sings", "q1_hypothesis": "he dances"}
    lines(tmp_path / "docs.jsonl", [{"docid": name, "document": text} for name, text in sides.items()])
    data = load_data(f"eraser:{tmp_path}", "dev")
    assert (data["text"][:], data["text_pair"][:]) == (["a man sings"], ["he dances"])
    assert pieces(data) == [[]]
    assert pieces(data, "text_pair", "rationale_pair") == [["dances"]]
    assert data.features["label"].names == ["entailment", "neutral", "contradiction"]


def test_eraser_tasks_do_not_mix(tmp_path):
    row = QUESTION | {"query": "so ?", "docids": ["d"], "evidences": []}
    eraser_task(tmp_path, [row | {"classification": name} for name in ("True", "POS")], d="a lid")
    require_error("train.jsonl, line 2: expected a label of False, True, got 'POS'", f"eraser:{tmp_path}")


@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_xnli_reads_one_language(tmp_path, suffix):
    CORPORA["xnli"](tmp_path)
    if suffix == "jsonl":
        head, *rows = [line.split("\t") for line in (tmp_path / "xnli.dev.tsv").read_text().splitlines()]
        (tmp_path / "xnli.dev.tsv").unlink()
        lines(tmp_path / "xnli.dev.jsonl", [dict(zip(head, row, strict=True)) for row in rows])
    data = load_data(f"xnli:{tmp_path}", "dev")
    assert data["text"][:] == ['He said "no'] * 2
    assert get_label_names(data) == ["entailment", "neutral"]
    assert load_data(f"xnli:{tmp_path}?language=sw", "dev")["text_pair"][:] == ["Aliongea"] * 2
    train = load_data(f"xnli:{tmp_path}")
    assert (train["text"][:], get_label_names(train)) == (["It rains ."], ["contradiction"])
    require_error("has no rows in the language 'fr'; it has: en, sw", f"xnli:{tmp_path}?language=fr", "dev")


@pytest.mark.parametrize("name", ["snli_1.0", "multinli_1.0"])
def test_the_first_releases_of_snli_and_multinli(tmp_path, name):
    pair = {"sentence1": "a lid", "sentence2": "a cup", "pairID": "1", "annotator_labels": ["neutral"]}
    lines(tmp_path / f"{name}_train.jsonl", [pair | {"gold_label": "neutral"}, pair | {"gold_label": "-"}])
    data = load_data(f"snli:{tmp_path}")
    assert (data["text"][:], data["text_pair"][:], get_label_names(data)) == (["a lid"], ["a cup"], ["neutral"])


def test_squad_2_has_questions_without_an_answer(tmp_path):
    data = read(tmp_path, "squad", "all")
    assert data["answer"][:2] == [[[8, 12]], []]
    assert len(data) == 60


def test_squad_as_a_folder_of_published_splits(tmp_path):
    file = CORPORA["squad"](tmp_path)
    (tmp_path / "train-v1.1.json").write_text(file.read_text().replace("small", "large"))
    assert set(load_data(f"squad:{tmp_path}", "dev")["text_pair"]) == {f"a small town {n}" for n in range(30)}
    assert set(load_data(f"squad:{tmp_path}", "train")["text_pair"]) == {f"a large town {n}" for n in range(30)}
    require_error("unknown split 'test'.*: dev, train", f"squad:{tmp_path}", "test")
    require_error("expected one of train-v2.0.json, .* found none", f"squad:{tmp_path.parent}")


def test_wmt_tags_of_words_gaps_and_ends(tmp_path):
    data = read(tmp_path, "wmt_qe")
    assert data["label"][:] == [pytest.approx(0.4), 0]
    assert pieces(data) == [["lid is"], []]
    assert pieces(data, "text_pair", "rationale_pair") == [["der Deckel"], ["Deckel"]]
    dev = load_data(f"wmt_qe:{tmp_path}", "dev")
    assert dev["rationale"][:] == [None, None]
    assert pieces(dev, "text_pair", "rationale_pair") == [["der Deckel"], ["Deckel"]]
    (tmp_path / "dev.tags").write_text("OK BAD OK OK OK OK\nOK OK BAD\n")  # the last belongs to the sentence's end
    assert pieces(load_data(f"wmt_qe:{tmp_path}", "dev"), "text_pair", "rationale_pair") == [["Deckel"], []]
    assert "label" not in load_data(f"wmt_qe:{tmp_path}", "test").features


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train.mt", "eins\n", r"train.mt: expected the 2 lines of train.src, got 1"),
        (
            "train.tags",
            "OK OK\nOK OK\n",
            "train.tags, line 1: expected a tag for each word of 5, .*, got 2",
        ),
        ("train.hter", "0.1\nmuch\n", "train.hter, line 2: expected a number in 'hter', got 'much'"),
        ("test.mt", "eins\n \n", "test.mt, line 2: the text in 'text' is empty"),
    ],
)
def test_malformed_wmt_files_are_refused(tmp_path, file, text, message):
    CORPORA["wmt_qe"](tmp_path)
    (tmp_path / file).write_text(text)
    require_error(message, f"wmt_qe:{tmp_path}", file.partition(".")[0])


def test_wmt_needs_translations(tmp_path):
    (tmp_path / "dev.src").write_text("one\n")
    require_error("expected a file at .*dev.mt", f"wmt_qe:{tmp_path}", None)


def test_ag_news_has_titles_and_names_of_classes(tmp_path):
    data = read(tmp_path, "zhang")
    assert data["text"][:] == ['A "cup" Won\\by a lid, again', "No title"]
    assert get_label_names(data) == ["Sports", "World"]
    assert data.info.description == f"zhang:{tmp_path}"


def test_yelp_has_numbers_of_all_splits_for_classes(tmp_path):
    for part, label in (("train", "5"), ("test", "1")):
        (tmp_path / f"{part}.csv").write_text(f'"{label}","dr. goldberg ""so""\\n\\nthere"\n')
    data = load_data(f"zhang:{tmp_path}", "test")
    assert data["text"][:] == ['dr. goldberg "so"\\n\\nthere']
    assert (data.features["label"].names, data["label"][:]) == (["1", "5"], [0])
    (tmp_path / "test.csv").write_text('"good","so"\n')
    require_error("test.csv, line 1: expected the number of a class first, got 'good'", f"zhang:{tmp_path}", "test")
    (tmp_path / "classes.txt").write_text("bad\ngood\n")
    require_error("train.csv, line 1: expected a label of 1, 2, got '5'", f"zhang:{tmp_path}", "train")


def test_a_csv_of_imdb_reviews_needs_no_options(tmp_path):
    path = cells(
        tmp_path / "IMDB Dataset.csv", [["review", "sentiment"], ["fine<br />", "positive"], ["no", "negative"]]
    )
    data = load_data(str(path), "all")
    assert (data["text"][:], get_label_names(data)) == (["fine<br />", "no"], ["positive", "negative"])


def test_imdb_has_folders_of_texts(tmp_path):
    data = read(tmp_path, "text_folders", None)  # there is no dev: the last split
    assert data["text"][:] == ["A bore.", "A fine film.<br /><br />Go."]
    assert get_label_names(data) == ["neg", "pos"]
    (tmp_path / "test" / "pos" / "0_9.txt").write_bytes(b"caf\xe9")
    require_error("test/pos/0_9.txt, line 1 is not UTF-8", f"text_folders:{tmp_path}", "test")
    require_error("expected one of train, dev, .* found none", f"text_folders:{tmp_path / 'train'}")


def test_a_share_of_train_is_held_out_where_there_is_no_dev(tmp_path):
    for part, count in (("train", 300), ("test", 20)):
        cells(tmp_path / f"{part}.csv", [[n % 2 + 1, f"{part} text {n}"] for n in range(count)])
    spec = f"zhang:{tmp_path}?held_out=0.2"
    train, dev, test = (load_data(spec, split)["text"][:] for split in ("train", "dev", "test"))
    assert sorted(train + dev) == sorted(load_data(f"zhang:{tmp_path}")["text"])
    assert 30 < len(dev) < 90
    assert len(test) == 20
    assert load_data(spec, "dev", seed=1)["text"][:] != dev
    assert load_data(spec, None)["text"][:] == dev
    require_error("unknown split 'dev'", f"zhang:{tmp_path}", "dev")
    require_error(
        "cannot hold out 2.0 of train for dev: expected a share between 0 and 1", f"zhang:{tmp_path}?held_out=2"
    )
    (tmp_path / "dev.csv").write_text('"1","so"\n')
    require_error("cannot hold out 0.2 of train for dev: .* has the splits train, dev, test", spec)


def test_rotten_tomatoes_is_divided_as_on_the_hub(tmp_path):
    parts = {split: read(tmp_path, "rotten_tomatoes", split) for split in ("train", "dev", "test", "all")}
    assert [len(part) for part in parts.values()] == [12, 2, 2, 16]
    assert parts["dev"]["text"][:] == ["a café number 6 .", "a lid number 6 ."]
    assert get_label_names(parts["dev"]) == ["pos", "neg"]
    (tmp_path / "rt-polarity.neg").unlink()
    require_error("expected a file at .*rt-polarity.neg", f"rotten_tomatoes:{tmp_path}")


def test_emotion_has_the_label_behind_the_last_semicolon(tmp_path):
    data = read(tmp_path, "emotion", "dev")
    assert (data["text"][:], get_label_names(data)) == (["i feel low; very low", "i feel fine"], ["sadness", "joy"])
    (tmp_path / "test.txt").write_text("i feel\n")
    require_error("test.txt, line 1: the text in 'text' is empty", f"emotion:{tmp_path}", "test")


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "d").mkdir()
    return tmp_path / "d"


def test_hub_folder_of_images(hub_folder):
    data = read(hub_folder, "hub", "dev")
    assert get_label_names(data) == ["dark", "light"]
    assert [image.getpixel((0, 0)) for image in data["image"]] == [40, 200]
    (hub_folder / "validation" / "dark" / "1.png").unlink()
    (one,) = load_data(f"hub:{hub_folder}", "dev")["label"]
    assert load_data(f"hub:{hub_folder}", "dev").features["label"].int2str(one) == "light"
    assert load_data(f"hub:{hub_folder}", "dev").features["label"].names == ["dark", "light"]
    (hub_folder / "validation" / "light" / "1.png").write_bytes(b"no picture")
    require_error(
        r"validation row 1: cannot open the image in 'image' .*light/1.png.: UnidentifiedImage",
        f"hub:{hub_folder}",
        "dev",
    )


def test_hub_images_in_parquet_with_names_of_their_own(hub_folder):
    shades = [Picture.new("RGB", (2, 2), shade) for shade in ("red", "blue", "red")]
    kinds = Features({"img": Image(), "fine_label": ClassLabel(names=["sea", "fox"])})
    Dataset.from_dict({"img": shades, "fine_label": [1, 0, 1]}, features=kinds).to_parquet(hub_folder / "train.parquet")
    read_back = load_data(f"hub:{hub_folder}?label_column=fine_label")
    assert get_label_names(read_back) == ["fox", "sea", "fox"]
    assert [image.getpixel((0, 0)) for image in read_back["image"]] == [(255, 0, 0), (0, 0, 255), (255, 0, 0)]
    assert "label" not in load_data(f"hub:{hub_folder}").features
    require_error("has no images in 'fine_label'; it has: img, fine_label", f"hub:{hub_folder}?image_column=fine_label")
    require_error(r"has no column 'label' \(label_column\); it has: fine_label", f"hub:{hub_folder}?label_column=label")
